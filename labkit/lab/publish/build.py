"""Publishing: reads the lab, renders every page, and swaps the site in; or only the page of one run that just ended."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from labkit.errors import LabError, LedgerError, RunError
from labkit.lab.folder import PARTIAL
from labkit.lab.ledger_files import ledger_content
from labkit.lab.publish.pages import LEDGERS, Menu, index_page, ledger_page, run_page, site_resolver
from labkit.lab.publish.read import RunView, read_run, run_folders
from labkit.lab.publish.site import check_target, put, site_lock, staged
from labkit.lab.publish.standing import MISSING, LedgerView, read_ledger_view
from labkit.lab.redact import Redaction, Scrubber

SITE = "site"


@dataclass(frozen=True)
class Report:
    """What a publish revealed: pages, files and bytes of the site, what was masked on the way, what was not right."""

    out: str
    pages: int
    runs: int
    files: int
    bytes: int
    figures: int
    redactions: tuple[Redaction, ...]
    problems: tuple[str, ...]

    @property
    def secrets(self) -> tuple[Redaction, ...]:
        """The masked things that were secrets."""
        return tuple(hit for hit in self.redactions if hit.kind == "secret")

    def to_json(self) -> str:
        document = asdict(self) | {"redactions": [hit._asdict() for hit in self.redactions]}
        return json.dumps(document, indent=2, ensure_ascii=False)


@dataclass(frozen=True)
class Source:
    """The lab, read for publishing: runs (newest first), ledgers (page name, file, page address, text), pictures."""

    root: Path
    runs: tuple[RunView, ...]
    ledgers: tuple[tuple[str, str, str, str], ...]
    pictures: dict[str, Path]
    ledger: LedgerView
    problems: tuple[str, ...]

    @property
    def menu(self) -> Menu:
        return Menu((("Questions", "index.html"), *((name, page) for name, _, page, _ in self.ledgers)))

    def resolver(self, top: str) -> Any:
        """Finds links from a page whose way to the site's root is `top`."""
        root_files = {file: page for _, file, page, _ in self.ledgers}
        root_files |= {f"figures/{path.name}": f"figures/{path.name}" for path in self.pictures.values()}
        return site_resolver(root_files, {run.id: frozenset(run.files) for run in self.runs}, top)


def publish(lab_root: Path, out: Path | None = None, strict: bool = False) -> Report:
    """Publishes the whole lab at `lab_root` into `out` (default `site/` in it).

    Every entry of the ledger is verified on the way, and one that does not agree with its data is marked so. LabError
    when `out` is some other folder, or with `strict` when anything published held a secret (it is masked either way),
    does not agree, or is of a run that is not here; then nothing is written."""
    root = lab_root.resolve()
    target = Path(out or root / SITE).absolute()
    check_target(target, root)
    scrubber = Scrubber()
    source = read_lab(root, scrubber)
    if strict:
        refuse_secrets(scrubber)
        refuse_disagreement(source.ledger)
    with site_lock(target), staged(target, keep=False) as aside:
        problems, figures = list(source.problems), 0
        for run in source.runs:
            beside = write_run(aside, run, source)
            figures += beside[0]
            problems += [f"{run.id}: {text}" for text in beside[1]]
        write_shared(aside, source)
        written = [path for path in sorted(aside.rglob("*")) if path.is_file()]
        report = Report(
            out=str(target),
            pages=sum(path.suffix == ".html" for path in written),
            runs=len(source.runs),
            files=len(written),
            bytes=sum(path.stat().st_size for path in written),
            figures=figures,
            redactions=tuple(scrubber.found()),
            problems=tuple(problems),
        )
    return report


def publish_run(lab_root: Path, run_folder: Path, out: Path | None = None) -> Path:
    """Publishes the page of one run, final or partial, into the site (made where there is none), and renews the index
    and the ledgers; the other runs' pages stay. Returns the page. RunError when the folder holds no readable run."""
    root, folder = lab_root.resolve(), Path(run_folder).resolve()
    target = Path(out or root / SITE).absolute()
    check_target(target, root)
    with site_lock(target):
        run = read_run(folder, Scrubber())
        source = read_lab(root, Scrubber(), whole=False)
        with staged(target, keep=True) as aside:
            for other in source.runs:
                if other.id != run.id and not (aside / "runs" / other.id / "index.html").is_file():
                    write_run(aside, read_run(other.folder, Scrubber()), source)
            write_run(aside, run, source)
            write_shared(aside, source)
    return target / "runs" / run.id / "index.html"


def read_lab(root: Path, scrubber: Scrubber, whole: bool = True) -> Source:
    """Reads all that is published, redacted; not `whole`, of each run what the index shows. A run folder that cannot be
    read becomes a problem, not an error."""
    runs, problems = [], []
    for folder in run_folders(root):
        try:
            runs.append(read_run(folder, scrubber, whole))
        except RunError as error:
            problems.append(f"{folder.name.removeprefix(PARTIAL)}: {str(error).replace(f'{folder}/', '')}")
    ledgers = []
    for name, file, page in LEDGERS:
        path = root / file
        if not path.is_file():
            continue
        try:
            ledgers.append((name, file, page, scrubber.read(file, ledger_content(path))))
        except LedgerError as error:
            problems.append(str(error).replace(f"{root}/", ""))
    pictures = {path.stem: path for path in sorted((root / "figures").glob("*.png"))}
    ledger = read_ledger_view(root, scrubber, fresh=whole)
    gone = sorted({run for runs_of in ledger.missing.values() for run in runs_of})
    problems += [f"{run}: its entry {MISSING}" for run in gone]
    return Source(root, tuple(runs), tuple(ledgers), pictures, ledger, (*problems, *ledger.problems))


def refuse_secrets(scrubber: Scrubber) -> None:
    """LabError that names the files when a secret was found."""
    places = [f"{hit.file} ({hit.times})" for hit in scrubber.found() if hit.kind == "secret"]
    if places:
        shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more files" if len(places) > 5 else "")
        raise LabError(
            f"secrets found in {shown}; nothing was published: remove them there, or publish without --strict"
        )


def refuse_disagreement(ledger: LedgerView) -> None:
    """LedgerError that names the entry when the ledger does not agree with its data, or cannot be recomputed here."""
    entry = next((standing for standing in ledger.standings if standing.disagrees), None)
    if entry is not None:
        raise LedgerError(
            f"the entry {entry.anchor} does not agree with its data: {entry.disagrees[0]}; nothing was published"
        )
    for standing in ledger.standings:
        if standing.missing:
            raise LedgerError(f"the entry {standing.anchor} {MISSING} ({standing.missing[0]}); nothing was published")
    if ledger.missing:
        raise LedgerError(f"the entry of {next(iter(ledger.missing))} {MISSING}; nothing was published")
    if ledger.problems:
        raise LedgerError(f"the ledger does not agree with its data: {ledger.problems[0]}; nothing was published")


def write_run(aside: Path, run: RunView, source: Source) -> tuple[int, list[str]]:
    """Writes a run's page and its files; (figures on it, what was not right)."""
    folder = aside / "runs" / run.id
    ledger = source.ledger
    disagrees = ledger.disagrees.get(run.id, ())
    text, beside = run_page(
        run,
        ledger.claims.get(run.id),
        disagrees,
        source.menu,
        source.resolver("../../"),
        ledger.waived.get(run.id, ()),
    )
    for old in folder.glob("*") if folder.exists() else ():
        old.unlink()
    for name, content in {**run.files, **beside.files, "index.html": text.encode()}.items():
        put(folder / name, content)
    return beside.figures, beside.problems


def write_shared(aside: Path, source: Source) -> None:
    """Writes the index, the ledgers, the pictures they use, and the assets: one plotly.js for the whole site."""
    pictures = {name: f"figures/{path.name}" for name, path in source.pictures.items()}
    index = index_page(
        title_of(source.root), source.runs, source.ledger.standings, source.menu, pictures, source.problems
    )
    put(aside / "index.html", index.encode())
    for name, file, page, text in source.ledgers:
        disagrees = source.ledger.disagrees
        missing = source.ledger.missing
        body = ledger_page(
            name, text, page, source.menu, source.resolver(""), disagrees.get(file, ()), disagrees, missing
        )
        put(aside / page, body.encode())
    for path in source.pictures.values():
        put(aside / "figures" / path.name, path.read_bytes())
    for name, content in assets():
        put(aside / "assets" / name, content)


def assets() -> Iterable[tuple[str, bytes]]:
    """The files every page shares."""
    own = files("labkit.lab.publish") / "assets"
    for name in ("site.css", "site.js"):
        yield name, (own / name).read_bytes()
    plotly = files("plotly") / "package_data" / "plotly.min.js"
    if not plotly.is_file():
        raise LabError("the installed plotly has no plotly.min.js; reinstall it: pip install --force-reinstall plotly")
    yield "plotly.min.js", plotly.read_bytes()


def title_of(root: Path) -> str:
    """The lab's name: the first heading of its README, else that of its folder."""
    readme = root / "README.md"
    if readme.is_file():
        for line in readme.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("# "):
                return line[2:].strip()
    return root.name
