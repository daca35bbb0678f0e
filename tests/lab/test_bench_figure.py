"""The picture of a bench: decode rates over streams, or prefill rates where nothing was decoded."""

import pytest

from labkit.errors import ParameterError
from labkit.lab.bench_figure import figure
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
