"""The picture of a bench: decode rates over streams, prefill rates over prompts, or decode rates over depths."""

import json
from types import SimpleNamespace

import pytest

from labkit.errors import ParameterError
from labkit.lab.lab import StoredRun
from labkit.lab.pictures.bench import figure, figure_of_runs
from labkit.measure.bench.report import Results
from labkit.measure.bench.settings import Cell
from labkit.measure.bench.sides import Sample


def results() -> Results:
    """Two runtimes, one twice as fast, at one and 32 streams, in three blocks."""
    found = Results()
    for block in range(3):
        for runtime, rate in (("labkit", 200.0), ("llama-server", 100.0)):
            for n in (1, 32):
                sample = Sample({"decode_tok_s": rate * n}, [], 0.0, 1.0)
                found.add(Cell(runtime, "q8_0", "decode", n, 16), block, sample)
    return found


def test_the_figure_is_of_decode_rates_or_of_prefill_where_there_are_none() -> None:
    found = results()
    drawn = figure(found.rows(), found, subtitle="s")
    assert "6,400 tokens a second decoded by 32 streams" in drawn.layout.title.text.replace("<br>", " ")
    names = {trace.name for trace in drawn.data}
    assert {"labkit q8_0", "llama-server q8_0"} <= names
    only = Results()
    cell = Cell("labkit", "f16", "prefill", 1, 512)
    only.add(cell, 0, Sample({"prefill_tok_s": 100.0, "achieved_gflop_s": 1.0}, [], 0.0, 1.0))
    assert "prompt tokens a second" in figure(only.rows(), only, subtitle="").layout.title.text
    with pytest.raises(ParameterError, match="no cell to draw"):
        figure([], Results(), subtitle="")


def test_one_stream_at_several_depths_is_drawn_over_them() -> None:
    """With prompts measured too the picture is of those; `--prompt none` leaves the depths."""
    found = Results()
    for depth, rate in ((16, 240.0), (4096, 230.0)):
        found.add(Cell("labkit", "f16", "decode", 1, depth), 0, Sample({"decode_tok_s": rate}, [], 0.0, 1.0))
    drawn = figure(found.rows(), found, subtitle="")
    assert "240.0 tokens a second decoded by 1 stream (f16)" in drawn.layout.title.text.replace("<br>", " ")
    assert {16, 4096} <= {float(x) for trace in drawn.data for x in trace.x}
    found.add(Cell("labkit", "f16", "prefill", 1, 512), 0, Sample({"prefill_tok_s": 100.0}, [], 0.0, 1.0))
    assert "prompt tokens a second" in figure(found.rows(), found, subtitle="").layout.title.text


def stored(tmp_path, name: str, device: str, quant: str) -> StoredRun:
    """What a picture needs of a stored bench."""
    folder = tmp_path / name
    folder.mkdir()
    lines = ["block,order,cell,metric,value,utc"]
    for i, (runtime, streams, rate) in enumerate([("llama-server", 1, 9.0), ("labkit", 1, 20.0), ("labkit", 8, 150.0)]):
        cell = {"runtime": runtime, "quant": quant, "phase": "decode", "streams": streams, "prompt": 16}
        quoted = json.dumps(cell).replace('"', '""')
        lines.append(f'0,{i},"{quoted}",decode_tok_s,{rate},2026-12-01T00:00:00Z')
    (folder / "measurements.csv").write_text("\n".join(lines) + "\n")
    record = SimpleNamespace(id=name, device={"name": device})
    return StoredRun(record, folder)  # type: ignore[arg-type]


def test_stored_benches_are_drawn_in_one_picture_ours_first(tmp_path):
    made = figure_of_runs([stored(tmp_path, "a", "card", "f16"), stored(tmp_path, "b", "card", "q8_0")], "decode")
    names = list(dict.fromkeys(trace.name for trace in made.data if trace.name))
    assert [name for name in names if ":" not in name] == [
        "labkit f16", "labkit q8_0", "llama-server f16", "llama-server q8_0",
    ]  # fmt: skip
    points = {(x, y) for trace in made.data for x, y in zip(trace.x or (), trace.y or (), strict=False)}
    assert {(1, 20.0), (8, 150.0), (1, 9.0)} <= points


def test_benches_of_two_devices_or_without_the_phase_are_refused(tmp_path):
    one, other = stored(tmp_path, "a", "card", "f16"), stored(tmp_path, "b", "another", "f16")
    with pytest.raises(ParameterError, match="another and card: a picture has one device"):
        figure_of_runs([one, other], "decode")
    with pytest.raises(ParameterError, match="no bench here has prefill rates"):
        figure_of_runs([one], "prefill")
