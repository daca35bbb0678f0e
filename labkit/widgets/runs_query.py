"""All samples of many runs as one table: DuckDB, in memory, over the runs' own CSV and JSON files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError, ParameterError
from labkit.lab.lab import StoredRun

# fields of a run that a figure can be drawn over: what they are called -> their place in run.json
OF_RUN = {
    "run": "$.id", "started": "$.started", "experiment": "$.experiment", "state": "$.state", "device": "$.device.name",
    "driver": "$.device.driver_info", "model": "$.model.name", "commit": "$.git.commit", "verdict": "$.verdict.outcome",
}  # fmt: skip
KNOB, PARAMETER = "cell.", "parameters."


@dataclass(frozen=True)
class Point:
    """The samples of one cell of one run: their values, and what the axes, the colour and the facet are for them."""

    run: str
    cell: str
    x: Any
    colour: str
    facet: str
    values: tuple[float, ...]


class Samples:
    """The samples of `runs`, asked in SQL. LabError where DuckDB is not installed."""

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        try:
            import duckdb
        except ImportError:
            raise LabError("explore needs DuckDB: `pip install duckdb`, or labkit's extra `lab`") from None
        self.runs = {run.record.id: run for run in runs}
        self.skipped: list[str] = []
        self._database = duckdb.connect(":memory:", config={"threads": 2})
        self._database.execute("SET enable_progress_bar = false")
        folders = [run.folder for run in runs if (run.folder / "measurements.csv").is_file()]
        self._load(folders)

    def _load(self, folders: Sequence[Path]) -> None:
        """Reads the files; a run whose samples cannot be read is left out and named."""
        db = self._database
        db.execute(
            "CREATE TABLE samples (folder VARCHAR, block BIGINT, ordinal BIGINT, cell JSON, metric VARCHAR, value DOUBLE)"
        )
        db.execute("CREATE TABLE runs (folder VARCHAR, record JSON)")
        import duckdb

        for folder in folders:
            try:
                db.execute(
                    'INSERT INTO samples SELECT ?, block, "order", cell::JSON, metric, value FROM read_csv(?, header=true, '
                    "delim=',', quote='\"', escape='\"', auto_detect=false, columns={'block': 'BIGINT', 'order': 'BIGINT', "
                    "'cell': 'VARCHAR', 'metric': 'VARCHAR', 'value': 'DOUBLE', 'utc': 'VARCHAR'})",
                    [str(folder), literal(folder / "measurements.csv")],
                )
                db.execute(
                    "INSERT INTO runs SELECT ?, content::JSON FROM read_text(?)",
                    [str(folder), literal(folder / "run.json")],
                )
            except duckdb.Error as error:
                db.execute("DELETE FROM samples WHERE folder = ?", [str(folder)])
                self.skipped.append(f"{folder.name}: {str(error).splitlines()[0][:200]}")

    def _column(self, query: str, *arguments: Any) -> list[Any]:
        return [row[0] for row in self._database.execute(query, list(arguments)).fetchall()]

    @property
    def metrics(self) -> list[str]:
        """The metrics that have samples, the most frequent first."""
        return self._column("SELECT metric FROM samples GROUP BY metric ORDER BY count(*) DESC, metric")

    @property
    def dimensions(self) -> list[str]:
        """What a figure can be drawn over: the knobs of cells, what is known of runs, and the runs' parameters."""
        knobs = self._column("SELECT DISTINCT unnest(json_keys(cell)) AS name FROM samples ORDER BY name")
        parameters = self._column(
            "SELECT DISTINCT unnest(json_keys(record, '$.parameters')) AS name FROM runs ORDER BY name"
        )
        found = [*(KNOB + name for name in knobs), *OF_RUN, *(PARAMETER + name for name in parameters)]
        return [name for name in found if '"' not in name and "\\" not in name]  # neither fits into a JSON path

    def points(self, metric: str, x: str, colour: str = "", facet: str = "") -> list[Point]:
        """A point a cell of each run that has samples of `metric`. ParameterError for an unknown name."""
        if metric not in (known := self.metrics):
            raise ParameterError(f"no run has samples of {metric!r}; there are {', '.join(known) or 'none'}")
        asked = [place_of(name, self.dimensions) if name else ("''", None) for name in (x, colour, facet)]
        fields = ", ".join(expression for expression, _ in asked)
        paths = [path for _, path in asked if path is not None]
        rows = self._database.execute(
            f"SELECT record->>'$.id', cell::VARCHAR, {fields}, list(value ORDER BY ordinal) FROM samples JOIN runs USING "
            "(folder) WHERE metric = ? GROUP BY ALL ORDER BY 1, 2",
            [*paths, metric],
        ).fetchall()
        return [Point(run, cell, plain(at), str(plain(c)), str(plain(f)), tuple(values)) for run, cell, at, c, f, values in
                rows]  # fmt: skip


def place_of(name: str, known: Sequence[str]) -> tuple[str, str]:
    """The SQL of a dimension and the JSON path it takes. ParameterError for one that is not there."""
    if name not in known:
        raise ParameterError(f"{name!r} is nothing to draw over; there are {', '.join(known)}")
    if name.startswith(KNOB):
        return "json_extract(cell, ?)", f'$."{name.removeprefix(KNOB)}"'
    if name.startswith(PARAMETER):
        return "json_extract(record, ?)", f'$.parameters."{name.removeprefix(PARAMETER)}"'
    return "json_extract(record, ?)", OF_RUN[name]


def plain(value: Any) -> Any:
    """A JSON value as DuckDB hands it: text, a number, or the words of what is neither; empty for nothing."""
    if value is None or value == "":
        return ""
    found = json.loads(value)
    if found is None:
        return ""
    return found if isinstance(found, str | int | float) and not isinstance(found, bool) else json.dumps(found)


def literal(path: Path) -> str:
    """A path that DuckDB takes for itself and not for a pattern."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path))
