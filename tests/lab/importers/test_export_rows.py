"""Runs in the rows of llama-bench and the names of vLLM: what came from such a file goes back into one unharmed."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.errors import LabError, ParameterError, RunError
from labkit.lab.capture import capture_host
from labkit.lab.exporters.registry import exporters, write_as
from labkit.lab.folder import hash_artefacts
from labkit.lab.imported import take_file
from labkit.lab.measurements import Measurement, append_json, append_rows, read_rows
from labkit.lab.record import RunRecord, canonical_cell, write_atomic

pytestmark = pytest.mark.quick
OURS = "20261201T100000Z-bench-0a1b2c3d"
DECODE = {"runtime": "labkit", "quant": "f16", "phase": "decode", "streams": 1, "prompt": 16}
EIGHT = DECODE | {"streams": 8}
PREFILL = DECODE | {"phase": "prefill", "prompt": 512}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def samples_of(folder: Path) -> list[tuple[int, str, str, float]]:
    return [(row.block, row.cell, row.metric, row.value) for row in read_rows(folder / "measurements.csv")]


@pytest.fixture
def ours(lab: Path) -> Path:
    """A bench of our own: a prompt read and tokens emitted, alone and by eight streams with their requests."""
    folder = lab / "data" / "runs" / OURS
    folder.mkdir(parents=True)
    rows = [
        Measurement(block, order, canonical_cell(cell), metric, value, "2026-12-01T10:00:00Z")
        for block in range(3)
        for order, (cell, metric, value) in enumerate(
            [(DECODE, "decode_tok_s", 40.0 + block), (PREFILL, "prefill_tok_s", 2048.0), (EIGHT, "decode_tok_s", 200.0)]
        )
    ]
    append_rows(folder / "measurements.csv", rows)
    for stream in range(8):
        times = {"submit_s": 0.01 * stream, "first_token_s": 0.1 + 0.01 * stream, "last_token_s": 3.25 + 0.01 * stream}
        row = {"block": 0, "cell": EIGHT, "prompt_tokens": 16, "completion_tokens": 64, **times}
        append_json(folder / "requests.jsonl", row)
    record = RunRecord(
        schema=1, id=OURS, experiment="bench", state="completed", started="2026-12-01T10:00:00Z",
        ended="2026-12-01T10:01:00Z", parameters={"generate": 64}, host=capture_host(),
        device={"name": "A card"}, model={"name": "tiny"}, artefacts=hash_artefacts(folder),
    )  # fmt: skip
    write_atomic(folder / "run.json", record.to_json())
    return folder


@pytest.mark.parametrize("name", ["llama-bench.json", "llama-bench.jsonl"])
def test_rows_of_llama_bench_come_back_as_they_were(lab: Path, samples: Path, tmp_path: Path, name: str) -> None:
    taken = take_file(lab, samples / name)
    written = write_as(taken.folder, "llama-bench", tmp_path / f"again-{name}")
    text = (samples / name).read_text()
    before = json.loads(text) if name.endswith("json") else lines(samples / name)
    after = json.loads(written.path.read_text()) if name.endswith("json") else lines(written.path)
    assert len(after) == len(before)
    assert written.left_out == ()
    for one, other in zip(before, after, strict=True):
        assert one["samples_ns"] == other["samples_ns"]
        for key, value in one.items():
            if key == "model_filename":
                assert value.endswith("/" + other[key])  # folders of another machine are not kept
            elif isinstance(value, float | list):
                assert other[key] == pytest.approx(value, rel=1e-6, abs=1e-6)  # theirs have six digits after the point
            elif key in ("avg_ns", "stddev_ns"):
                assert math.isclose(other[key], value, abs_tol=1)
            else:
                assert other[key] == value, key
    again = take_file(tmp_path / "other", written.path)
    assert [row[:3] for row in samples_of(again.folder)] == [row[:3] for row in samples_of(taken.folder)]
    values = [row[3] for row in samples_of(taken.folder)]
    assert [row[3] for row in samples_of(again.folder)] == pytest.approx(values, rel=1e-9)
    same = ("device", "model", "packages", "host", "started")
    assert again.record.model_dump(include=set(same)) == taken.record.model_dump(include=set(same))


def test_a_record_of_vllm_comes_back_as_it_was(lab: Path, samples: Path, tmp_path: Path) -> None:
    taken = take_file(lab, samples / "vllm.json")
    written = write_as(taken.folder, "vllm", tmp_path / "again.json")
    before, after = json.loads((samples / "vllm.json").read_text()), json.loads(written.path.read_text())
    assert after["failed"] == 1
    for key in ("input_lens", "output_lens", "ttfts", "duration", "completed", "total_input_tokens", "model_id"):
        assert after[key] == before[key]
    assert after["itls"] == before["itls"]
    assert after["start_times"] == pytest.approx([start - 100.0 for start in before["start_times"]])
    for key in before:
        if key.startswith(("mean_", "median_", "std_")) or key.endswith("_throughput"):
            assert after[key] == pytest.approx(before[key]), key
    assert after["p99_ttft_ms"] is None  # four requests bear no 99th percentile
    again = take_file(tmp_path / "other", written.path)
    assert samples_of(again.folder) == [
        (block, cell, metric, pytest.approx(value)) for block, cell, metric, value in samples_of(taken.folder)
    ]


def test_a_summary_of_vllm_comes_back_without_requests(lab: Path, samples: Path, tmp_path: Path) -> None:
    taken = take_file(lab, samples / "vllm-summary.json")
    after = json.loads(write_as(taken.folder, "vllm", tmp_path / "again.json").path.read_text())
    before = json.loads((samples / "vllm-summary.json").read_text())
    same = (
        "completed",
        "total_output_tokens",
        "total_input_tokens",
        "output_throughput",
        "request_rate",
        "max_concurrency",
    )
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["median_ttft_ms"] == pytest.approx(58.0)
    assert after["mean_ttft_ms"] is None
    assert "ttfts" not in after


def test_our_own_bench_is_exported_as_rows_of_llama_bench(
    call: Callable[..., SimpleNamespace], ours: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    done = call("export", OURS, "--as", "llama-bench", "--out", path)
    assert done.exit_code == 0, done
    decode, prefill = lines(path)
    assert (decode["n_prompt"], decode["n_gen"], decode["n_depth"]) == (0, 64, 16)
    assert decode["samples_ts"] == pytest.approx([40.0, 41.0, 42.0])
    assert decode["samples_ns"] == [1_600_000_000, round(64e9 / 41), round(64e9 / 42)]
    assert (prefill["n_prompt"], prefill["n_gen"], prefill["samples_ns"]) == (512, 0, [250_000_000] * 3)
    assert prefill["stddev_ns"] == 0
    assert (prefill["gpu_info"], prefill["model_filename"], prefill["model_type"]) == ("A card", "tiny", "f16")
    assert prefill["build_commit"] is None
    assert "it has 8 streams, and a test has one" in done.stderr
    back = take_file(tmp_path / "other", path)
    assert back.record.device == {"name": "A card"}


def test_our_own_requests_are_exported_in_the_names_of_vllm(ours: Path, tmp_path: Path) -> None:
    written = write_as(ours, "vllm", tmp_path / "rows.jsonl")
    [row] = lines(written.path)
    assert row["max_concurrency"] == 8
    assert row["completed"] == 8
    assert row["duration"] == pytest.approx(3.32)  # from the first submit at 0 to the last token at 3.25 + 0.07
    assert row["output_throughput"] == pytest.approx(8 * 64 / 3.32)
    assert row["median_ttft_ms"] == pytest.approx(100.0)
    assert row["median_tpot_ms"] == pytest.approx(50.0)  # 3.15 s over 63 tokens
    assert row["mean_itl_ms"] is None
    assert "itls" not in row
    assert len(written.left_out) == 8  # the other repetitions have no requests
    [back] = take_file(tmp_path / "other", written.path).folder.glob("requests.jsonl")
    assert len(back.read_text().splitlines()) == 8


def test_without_out_rows_lie_where_one_is_by_the_runs_id(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_as(ours, "llama-bench").path == tmp_path / f"{OURS}.llama-bench.jsonl"
    write_as(ours, "llama-bench")  # the same again is no fault


def test_an_unknown_format_a_taken_file_and_a_run_without_rows_are_refused(
    lab: Path, samples: Path, ours: Path, tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match="cannot be exported as 'csv'; there are: zip, llama-bench, vllm"):
        write_as(ours, "csv", tmp_path / "x")
    taken = tmp_path / "taken.jsonl"
    taken.write_text("mine")
    with pytest.raises(LabError, match="is there already and is something else"):
        write_as(ours, "llama-bench", taken)
    assert taken.read_text() == "mine"
    with pytest.raises(LabError, match="or in none; name a file"):
        write_as(ours, "llama-bench", tmp_path / "none" / "x.jsonl")
    with pytest.raises(RunError, match="has nothing that rows of vllm hold"):
        write_as(take_file(lab, samples / "llama-bench.jsonl").folder, "vllm", tmp_path / "y.jsonl")
    assert not (tmp_path / "y.jsonl").exists()


def test_every_exporter_is_found_by_its_file() -> None:
    assert list(exporters()) == ["llama-bench", "vllm"]
