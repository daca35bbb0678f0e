"""A CSV of claims is read strictly: every fault is one line that names row and column, and changes nothing."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from make_evidence import claimed, write_claims

from labkit.audit.claims import REQUIRED, read_claims
from labkit.audit.claims_file import half_digit, number_of
from labkit.audit.report import audit
from labkit.errors import ParameterError

RECORD = Path(__file__).resolve().parents[2] / "data" / "claims" / "r9700.csv"


def fault(path: Path) -> str:
    """The one line that reading a file ends in."""
    before = beginning(path)
    with pytest.raises(ParameterError) as caught:
        read_claims(path)
    assert beginning(path) == before
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500
    return str(caught.value)


def beginning(path: Path) -> tuple[int, bytes]:
    """A file's size and its first bytes."""
    with path.open("rb") as file:
        return path.stat().st_size, file.read(1000)


@pytest.mark.quick
def test_the_record_holds_the_four_projects_and_its_verdicts():
    claims = read_claims(RECORD)
    assert len(claims.rows) >= 60
    assert {row.texts["source"].partition("-")[0] for row in claims.rows} == {"AMA", "DIS", "BLU", "NIK"}
    assert claims.unread == ()
    found = audit(claims.evidence())
    stands = {name: found.standing(name) for name in found.subjects}
    assert stands["AMA-batch-32"] == "fail"
    assert "766.9 GB/s" in found.reason("AMA-batch-32")
    for name in ("AMA-batch-1", "DIS-vulkan-tg128", "DIS-vllm-pp4096", "BLU-27b-iq4-short", "BLU-27b-mtp3-code",
                 "BLU-27b-dflash7-json", "BLU-matvec-Q5_K-tuned", "NIK-27b-decode-128900", "NIK-27b-chain-code-edit",
                 "NIK-27b-mxfp4-330w-n24", "NIK-9b-plain-n60", "NIK-9b-prefill-prefix-hit", "NIK-27b-tp2-23000"):  # fmt: skip
        assert stands[name] == "ok", (name, found.reason(name))
    for name in ("NIK-9b-prefill-code-edit", "NIK-27b-mxfp4-250w-prefill-60329", "NIK-d02-pair", "DIS-sglang-n1"):
        assert stands[name] == "fail", name
    for name in ("BLU-27b-mtp-depth-1000", "NIK-27b-production-n1", "DIS-4days", "NIK-power-transient"):
        assert stands[name] == "not assessable", name
    assert Counter(stands.values())["ok"] > 100


@pytest.mark.parametrize("column", REQUIRED)
def test_a_missing_column_is_named(tmp_path: Path, column: str):
    path = write_claims(tmp_path / "claims.csv", [{}])
    path.write_text(path.read_text().replace(f",{column},", ",another,", 1))
    said = fault(path)
    assert said.startswith(f"claims.csv, the header (line 1), column {column}: missing")


@pytest.mark.parametrize(
    ("row", "column", "said"),
    [
        ({"value": "nan"}, "value", "'nan' is not a number"),
        ({"value": "inf"}, "value", "'inf' is not a number"),
        ({"value": "1e999"}, "value", "outside what can be"),
        ({"value": ""}, "value", "'' is no value"),
        ({"value": "-3"}, "value", "outside what can be"),
        ({"value": "17-18"}, "value", "'17-18' is not a number"),
        ({"unit": "furlongs"}, "unit", "'furlongs' is not a known unit"),
        ({"unit": "ms"}, "unit", "that is a time, and decode_tok_s is in tok/s"),
        ({"unit": ""}, "unit", "'' is not a known unit"),
        ({"streams": "many"}, "streams", "'many' is not a number"),
        ({"streams": "0"}, "streams", "0 is not a count"),
        ({"bytes_per_weight": "0"}, "bytes_per_weight", "0 is not a size; write 2 for FP16"),
        ({"active_params": "0"}, "active_params", "0 is not a count of weights; write 7e9 or 7B"),
        (
            {"active_params": "7"},
            "active_params",
            "'7' is no model's count of weights; if 7 billion are meant, write 7e9 or 7B",
        ),
        ({"active_params": "0.6"}, "active_params", "write 0.6e9 or 0.6B"),
        ({"power_cap_w": "0"}, "power_cap_w", "0 is not a cap"),
        ({"memory_mhz": "0"}, "memory_mhz", "0 is not a clock"),
        ({"value": "0"}, "value", "0 is no decode_tok_s"),
        ({"value": "0", "metric": "power_w", "unit": "W"}, "value", "0 is no power_w"),
        ({"streams": "NaN"}, "streams", "'NaN' is not a number"),
        ({"depth": "38 furlongs"}, "depth", "has a unit that does not belong here"),
        ({"power_cap_w": "250 hp"}, "power_cap_w", "a unit that does not belong here"),
        ({"cache": "lukewarm"}, "cache", "'lukewarm' is not a state of a cache"),
        ({"source": ""}, "source", "it is empty"),
        ({"metric": ""}, "metric", "it is empty"),
        ({"note": "x" * 10_001}, "note", "10,001 characters"),
        ({"note": "\x1b[2Jgone"}, "note", "the control character 0x1b is not text"),
        ({"id": "x" * 201}, "id", "201 characters"),
    ],
)
def test_a_wrong_value_is_named_with_its_row_and_column(tmp_path: Path, row: dict[str, Any], column: str, said: str):
    path = write_claims(tmp_path / "claims.csv", [{}, row])
    found = fault(path)
    assert found.startswith(f"claims.csv, row 2 (line 3), column {column}: ")
    assert said in found


def test_an_id_that_is_there_twice_is_named_with_both_rows(tmp_path: Path):
    found = fault(write_claims(tmp_path / "claims.csv", [{"id": "A"}, {"id": "B"}, {"id": "A"}]))
    assert found == "claims.csv, row 3 (line 4), column id: 'A' is the id of row 1 already"


def test_a_row_of_the_wrong_length_names_where_it_ends(tmp_path: Path):
    path = write_claims(tmp_path / "claims.csv", [{}])
    path.write_text(path.read_text() + "C2,a group\n")
    assert "row 2 (line 3), column prompt_tokens: the row has 2 cells and the header" in fault(path)


def test_text_that_is_not_utf_8_is_named_with_its_row_and_column(tmp_path: Path):
    path = write_claims(tmp_path / "claims.csv", [{}, {"model": "M?istral"}])
    path.write_bytes(path.read_bytes().replace(b"M?istral", b"M\xefstral"))
    assert "row 2 (line 3), column model: byte 0xef is not UTF-8" in fault(path)


def test_one_field_of_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path):
    path = write_claims(tmp_path / "claims.csv", [{}])
    lead = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(lead)
        file.write(b'C2,group,,a test,"2026')
        file.seek(lead + (1 << 30))
        file.write(b'"\n')
    began = time.perf_counter()
    assert "row 2 (line 3), column date: the field goes on for over 100,000 bytes" in fault(path)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\0\0\0\n", b'"', b"a,a\n1,2\n", b"id,,value\n", b"\xff\xfe\n", b"PK\x03\x04"]
)
def test_what_is_no_table_gets_one_line(tmp_path: Path, content: bytes):
    path = tmp_path / "claims.csv"
    path.write_bytes(content)
    assert fault(path).startswith("claims.csv")


def test_a_file_parted_by_semicolons_says_so(tmp_path: Path):
    path = write_claims(tmp_path / "claims.csv", [{}])
    path.write_text(path.read_text().replace(",", ";"))
    assert "the columns are parted by ';'" in fault(path)


def test_a_quote_that_does_not_close_names_its_field(tmp_path: Path):
    path = write_claims(tmp_path / "claims.csv", [{}])
    path.write_text(path.read_text() + 'C2,"a group without an end\n' + "more\n" * 30_000)
    assert "row 2 (line 3), column group: a quoted field does not end" in fault(path)


def test_there_is_no_file(tmp_path: Path):
    with pytest.raises(ParameterError, match="No such file"):
        read_claims(tmp_path / "nothing.csv")
    with pytest.raises(ParameterError, match="directory"):
        read_claims(tmp_path)


@pytest.mark.parametrize(
    ("metric", "value", "unit", "means", "amount"),
    [
        ("decode_tok_s", "17", "t/s", "decode_tok_s", 17),
        ("decode", "17", "tokens/s", "decode_tok_s", 17),
        ("decode_aggregate", "1,724", "tok/s", "decode_tok_s", 1724),
        ("decode_spec_mtp3", "88.0", "tokens per second", "decode_tok_s", 88),
        ("tg128", "167.6", "t/s", "decode_tok_s", 167.6),
        ("pp512", "3.421", "ktok/s", "prefill_tok_s", 3421),
        ("prefill", "3421", "tok/s", "prefill_tok_s", 3421),
        ("TPOT", "62.9", "ms", "tpot_s", 0.0629),
        ("ttft", "0.41", "s", "ttft_s", 0.41),
        ("step_ms", "40.2", "ms/step", "step_ms", 40.2),
        ("matvec_bandwidth", "0.59", "TB/s", "achieved_gb_s", 590),
        ("bandwidth", "549.5", "GiB/s", "achieved_gb_s", 590.02),
        ("matrix_rate", "225", "TFLOPS", "achieved_gflop_s", 225_000),
        ("power", "0.488", "kW", "power_w", 488),
        ("acceptance", "84.6", "%", "acceptance", 0.846),
        ("device_bytes", "4.6", "GiB", "device_bytes", 4.6 * 2**30),
        ("kv_pool", "84224", "tokens", "kv_pool", 84224),
        ("ttft_ms", "410", "ms", "ttft_s", 0.41),
        ("decode tok/s", "17", "tok/s", "decode_tok_s", 17),
        ("decode", "54", "tok/s/stream", "stream_tok_s", 54),
        ("throughput", "54", "t/s per user", "stream_tok_s", 54),
    ],
)
def test_units_and_names_people_write_come_to_the_metrics_own(
    tmp_path: Path, metric: str, value: str, unit: str, means: str, amount: float
):
    (row,) = claimed(tmp_path, [{"metric": metric, "value": value, "unit": unit}]).rows
    assert row.metric == means
    assert row.value == pytest.approx(amount, rel=1e-4)


@pytest.mark.parametrize(
    ("written", "means"),
    [("cold", "cold"), ("no cache", "cold"), ("prefix cache off", "cold"), ("Warm", "warm"), ("shared prefix", "warm"),
     ("prefix hit", "warm"), ("", None), ("unknown", None), ("prefix caching on", None), ("enabled", None)],
)  # fmt: skip
def test_a_cache_is_cold_or_warm_or_not_said_and_being_on_says_neither(tmp_path: Path, written: str, means: str | None):
    (row,) = claimed(tmp_path, [{"cache": written}]).rows
    assert row.cache == means


def test_columns_have_the_names_people_give_them(tmp_path: Path):
    path = write_claims(tmp_path / "claims.csv", [{"streams": 32, "memory_mhz": "1359 MHz", "active_params": "7.25B"}])
    text = (
        path.read_text()
        .replace("streams", "batch")
        .replace("quantisation", "Quant")
        .replace("memory_mhz", "memory clock")
    )
    path.write_text(text.replace(",cache,", ",cache state,").replace("output_tokens", "output length"))
    (row,) = read_claims(path).rows
    assert row.numbers["streams"] == 32
    assert row.numbers["memory_mhz"] == 1359
    assert row.numbers["active_params"] == 7.25e9


@pytest.mark.parametrize("metric", ["acceptance", "logprob_gap"])
def test_0_is_a_value_where_a_metric_may_be_0(tmp_path: Path, metric: str):
    (row,) = claimed(tmp_path, [{"metric": metric, "value": "0", "unit": "1", "active_params": "100000"}]).rows
    assert (row.value, row.numbers["active_params"]) == (0, 1e5)


def test_what_is_unknown_stays_unknown(tmp_path: Path):
    (row,) = claimed(tmp_path, [{"streams": "unknown", "depth": "-", "slots": "n/a", "active_params": ""}]).rows
    assert row.observation({}).streams is None
    assert row.observation({}).depth is None
    assert row.observation({}).active_params is None
    assert row.observation({}).device is None


def test_a_format_says_how_many_bytes_its_weights_take_and_a_mixture_does_not(tmp_path: Path):
    rows = claimed(tmp_path, [{"quantisation": name} for name in ("FP16", "Q8_0", "UD-Q4_K_XL", "AWQ-4bit")]).rows
    assert [row.observation({}).bytes_per_weight for row in rows] == [2.0, 1.0625, None, None]


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [("FP16", 16), ("Q8_0", 8), ("Q4_K_S", 8), ("UD-IQ4_XS", 8), ("AWQ-4bit", 8), ("MXFP4 W4A8", 8), ("W4A16", 16),
     ("MXFP4", None), ("", None)],
)  # fmt: skip
def test_operands_are_as_narrow_as_a_format_allows(quantisation: str, bits: int | None, tmp_path: Path):
    (row,) = claimed(tmp_path, [{"quantisation": quantisation}]).rows
    assert row.observation({}).operand_bits == bits


def test_a_spreadsheet_with_carriage_returns_and_a_mark_is_read(tmp_path: Path):
    path = write_claims(tmp_path / "claims.csv", [{"streams": 32}])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_claims(path).rows[0].numbers["streams"] == 32


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [
        ("1,724", 1724, 0.5),
        ("36.0", 36, 0.05),
        ("24.7e9*", 24.7e9, 5e7),
        ("~0.53", 0.53, 0.005),
        (".0629", 0.0629, 0.00005),
    ],
)
def test_numbers_keep_the_digits_they_were_written_with(text: str, value: float, half: float):
    assert number_of(text, {}) == pytest.approx(value)
    assert half_digit(text) == pytest.approx(half)
