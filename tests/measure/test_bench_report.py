"""The table, rows and figure of a bench: intervals, ratios paired by block, never wider than a page."""

import pytest

from labkit.measure.bench.report import WIDTH, Results, Row, bounds, geometric, number, table
from labkit.measure.bench.settings import Cell
from labkit.measure.bench.sides import Sample


def results(blocks: int = 4) -> Results:
    """labkit twice as fast as the peer in each block, both getting faster from block to block."""
    found = Results()
    for block in range(blocks):
        pace = 1 + block / 10
        for runtime, rate in (("labkit", 200.0), ("llama-server", 100.0)):
            for n in (1, 32):
                metrics = {
                    "decode_tok_s": rate * n * pace, "step_ms": 1000 / rate, "achieved_gb_s": 3900.0,
                    "achieved_gflop_s": 5000.0, "share_of_read_bandwidth": 0.91, "power_w": 650.4,
                    "core_mhz": 1980.0, "temperature_c": 45.0,
                }  # fmt: skip
                if runtime == "labkit":
                    metrics |= {"gpu_ms_step": 4.5, "host_ms_step": 0.021}
                found.add(Cell(runtime, "q8_0", "decode", n, 16), block, Sample(metrics, [], 0.0, 1.0))
            metrics = {
                "prefill_tok_s": 31000.0 * rate,
                "ttft_s": 0.1,
                "achieved_gflop_s": 5e5,
                "share_of_matrix_rate": 0.7,
            }
            found.add(Cell(runtime, "q8_0", "prefill", 1, 4096), block, Sample(metrics, [], 0.0, 1.0))
    return found


def test_ratios_are_of_pairs_so_a_drift_of_both_cancels() -> None:
    rows = results().rows()
    ours = next(row for row in rows if row.cell == Cell("labkit", "q8_0", "decode", 32, 16))
    ratio = ours.against["llama-server"]
    assert ratio.estimate == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2.0)
    assert ours.rate.high is not None
    assert ours.rate.high > 1.1 * ours.rate.estimate  # the rate itself did drift
    assert all(not row.against for row in rows if row.cell.runtime == "llama-server")


def test_rows_stand_by_work_with_ours_first_and_say_all_of_it() -> None:
    rows = results().rows()
    assert [(r.cell.phase, r.cell.streams, r.cell.runtime) for r in rows] == [
        ("decode", 1, "labkit"), ("decode", 1, "llama-server"), ("decode", 32, "labkit"), ("decode", 32, "llama-server"),
        ("prefill", 1, "labkit"), ("prefill", 1, "llama-server"),
    ]  # fmt: skip
    plain = rows[0].plain()
    assert plain["tok_s_low"] < plain["tok_s"] < plain["tok_s_high"]
    assert plain["power_w"] == 650.4
    assert plain["ratio_to"]["llama-server"]["n"] == 4


def test_the_table_fits_a_page_and_cuts_nothing() -> None:
    text = table(results().rows())
    lines = text.splitlines()
    assert len(lines) == 7
    assert all(len(line) < WIDTH for line in lines)
    for part in (
        "decode 32 at 16",
        "llama-server",
        "2.00x",
        "3,900 GB/s",
        "500 TF/s",
        "91%",
        "70%",
        "650",
        "1980",
        "45",
    ):
        assert part in text


def test_columns_nobody_fills_are_left_out() -> None:
    found = Results()
    metrics = {"decode_tok_s": 10.0, "achieved_gb_s": 1.0, "achieved_gflop_s": 1.0}
    found.add(Cell("labkit", "f16", "decode", 1, 16), 0, Sample(metrics, [], 0.0, 1.0))
    head = table(found.rows()).splitlines()[0].split()
    assert head == ["quant", "work", "runtime", "tok/s", "rate"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0"), (1234.56, "1,235"), (3.14159, "3.14"), (0.00012, "0.00012"), (99.96, "100.0")],
)
def test_numbers_are_short_without_an_exponent(value: float | None, text: str) -> None:
    assert number(value) == text


def test_one_sample_has_no_interval_and_few_samples_a_wide_one() -> None:
    assert bounds(geometric([5.0])) == ""
    assert bounds(geometric([1.0, 9.0])) == "wide"
    assert bounds(geometric([100.0, 101.0, 99.0])) == "±2.5%"


def test_a_row_is_frozen() -> None:
    row = results().rows()[0]
    assert isinstance(row, Row)
    with pytest.raises(AttributeError):
        row.cell = None  # type: ignore[misc]
