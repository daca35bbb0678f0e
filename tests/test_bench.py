"""`lab bench` and `lab bench ops` as commands: records, tables, JSON, a peer in turns, interrupts, and refused input."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.engine.engine import default_device
from labkit.lab.publish import publish_run
from labkit.lab.record import RunRecord, read_record
from labkit.measure import matrix_rate, roofline
from labkit.measure.bench.ceilings import ceilings_of
from labkit.measure.bench.sides import LabkitSide

ROOT = Path(__file__).parents[1]
TINY = ROOT / "tests" / "data" / "tiny" / "llama-q8_0.gguf"
SHORT = ["--batch", "1,3", "--prompt", "20", "--generate", "6", "-r", "2"]
Lab = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab of its own, a cache of its own, and ceilings that take a moment to measure."""
    (tmp_path / "lab" / "labkit").mkdir(parents=True)
    (tmp_path / "lab" / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path / "lab"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(roofline, "stream_bytes", lambda device: 1 << 22)
    monkeypatch.setattr(matrix_rate, "_LONG_S", 1e-4)
    return tmp_path / "lab"


@pytest.fixture
def bench(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Lab:
    """Runs `lab bench ARGUMENTS` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        code = ended.value.code
        return (0 if code is None else int(code)), said.out, said.err

    return run


def only_run(home: Path) -> tuple[Path, RunRecord]:
    """The one record there is."""
    folders = list((home / "data" / "runs").glob("*"))
    assert len(folders) == 1, folders
    return folders[0], read_record(folders[0])


def samples(folder: Path) -> list[dict[str, Any]]:
    with (folder / "measurements.csv").open(newline="") as file:
        return [row | {"cell": json.loads(row["cell"])} for row in csv.DictReader(file)]


def requests(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_a_bench_leaves_a_record_from_which_its_rates_follow(bench: Lab, home: Path) -> None:
    code, out, _ = bench("--shape", "tiny", "--quant", "f16,q8_0", *SHORT)
    assert code == 0
    assert "random weights (for speed only)" in out
    folder, record = only_run(home)
    assert str(folder) in out
    assert (record.experiment, record.state, record.plan_hash, record.verdict) == ("bench", "completed", None, None)
    assert record.device is not None
    assert record.device["uuid"]
    assert record.model is not None
    assert [each["note"] for each in record.model["models"]] == ["random weights: for speed only"] * 2
    assert set(record.program_fingerprints) == {f"{q} decode {n}" for q in ("f16", "q8_0") for n in (1, 3)}
    assert any(note.startswith("ceilings: reads ") for note in record.notes)
    assert any(note.startswith("telemetry: ") for note in record.notes)
    rows = samples(folder)
    asked = {(r["cell"]["quant"], r["cell"]["phase"], r["cell"]["streams"], r["block"]) for r in rows}
    assert len(asked) == 2 * 3 * 2
    for row in rows:
        if row["metric"] == "decode_tok_s":
            mine = [r for r in requests(folder) if r["block"] == int(row["block"]) and r["cell"] == row["cell"]]
            assert len(mine) == row["cell"]["streams"]
            tokens = sum(r["window_tokens"] for r in mine)
            seconds = mine[0]["window_end_s"] - mine[0]["window_start_s"]
            assert float(row["value"]) == pytest.approx(tokens / seconds)
            assert tokens <= sum(r["completion_tokens"] for r in mine)
        elif row["metric"] == "prefill_tok_s":
            same = [r for r in rows if r["cell"] == row["cell"] and r["block"] == row["block"]]
            assert "host_ms_step" in {r["metric"] for r in same}
    metrics = {r["metric"] for r in rows}
    assert metrics >= {"prefill_tok_s", "step_ms", "host_ms_step", "achieved_gb_s", "share_of_read_bandwidth"}
    assert all(float(r["value"]) > 0 for r in rows)
    hashes = [r["prompt_sha256"] for r in requests(folder) if r["cell"]["quant"] == "f16"]
    assert len(set(hashes)) == len(hashes)
    check_budget(folder, out)


def check_budget(folder: Path, out: str) -> None:
    """The record says where a step's time goes: every dispatch of the program, each operation with its bytes over its time."""
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    cells = {(s["cell"]["quant"], s["cell"]["streams"]) for s in steps}
    assert cells == {(quant, n) for quant in ("f16", "q8_0") for n in (1, 3)}
    for quant, n in cells:
        mine = [s for s in steps if (s["cell"]["quant"], s["cell"]["streams"]) == (quant, n)]
        names = [s["operation"] for s in mine]
        assert {"attention", "embedding", "linear ffn_down.weight"} <= set(names)
        assert not any("blk." in name for name in names)
        assert sum(s["dispatches"] for s in mine) > len(mine)  # layers are one row
        assert [s["gpu_ms"] for s in mine] == sorted((s["gpu_ms"] for s in mine), reverse=True)
        for s in mine:
            assert s["achieved_gb_s"] == pytest.approx(s["bytes"] / s["gpu_ms"] / 1e6)
            assert s["us_each"] == pytest.approx(1e3 * s["gpu_ms"] / s["dispatches"])
        assert f"{quant} decode {n} at 16: " in out


def test_a_record_of_a_bench_becomes_a_page(bench: Lab, home: Path) -> None:
    pytest.importorskip("plotly", reason="pages need the extra labkit[lab]")
    assert bench(str(TINY), *SHORT)[0] == 0
    folder, record = only_run(home)
    assert record.model is not None
    assert record.model["sha256"]
    assert "note" not in record.model
    assert (folder / "figure.json").is_file()
    page = publish_run(home, folder).read_text()
    assert "phase=decode, prompt=16, quant=q8_0, runtime=labkit, streams=3" in page
    assert "tokens a second decoded by 3 streams" in page


def test_without_a_record_nothing_is_kept(bench: Lab, home: Path) -> None:
    code, out, _ = bench("--shape", "tiny", *SHORT, "--no-record", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["run"] is None
    assert document["random_weights"] is True
    assert {row["phase"] for row in document["rows"]} == {"decode", "prefill"}
    assert all(row["tok_s"] > 0 and row["n"] == 2 for row in document["rows"])
    assert document["ceilings"]["read_gb_s"] > 0
    assert not (home / "data").exists()


def test_a_phase_can_be_left_out(bench: Lab) -> None:
    _, out, _ = bench("--shape", "tiny", "--batch", "none", "--prompt", "8,12", "-r", "1", "--no-record", "--json")
    assert [row["prompt"] for row in json.loads(out)["rows"]] == [8, 12]
    _, out, _ = bench(
        "--shape", "tiny", "--batch", "2", "--prompt", "none", "--depth", "0,40", "--generate", "5", "-r", "1",
        "--no-record", "--json",
    )  # fmt: skip
    assert [(row["streams"], row["prompt"]) for row in json.loads(out)["rows"]] == [(2, 16), (2, 40)]


def test_a_peer_is_measured_in_turns_over_the_same_prompts(bench: Lab, home: Path, imitation: Path) -> None:
    code, out, _ = bench("--shape", "tiny", *SHORT, "--against", "llama-server", "--llama-server", str(imitation))
    assert code == 0
    assert out.count("llama-server") == 3  # a row a cell
    folder, record = only_run(home)
    rows = [row for row in samples(folder) if row["metric"] in ("decode_tok_s", "prefill_tok_s")]
    order = [row["cell"]["runtime"] for row in rows if row["block"] == "0"]
    assert sorted(order) == ["labkit"] * 3 + ["llama-server"] * 3
    for block in (0, 1):
        for streams, phase in ((1, "decode"), (3, "decode"), (1, "prefill")):
            mine = [
                r for r in requests(folder)
                if r["block"] == block and r["cell"]["streams"] == streams and r["cell"]["phase"] == phase
            ]  # fmt: skip
            by_runtime = {
                name: sorted(r["prompt_sha256"] for r in mine if r["cell"]["runtime"] == name) for name in set(order)
            }
            assert by_runtime["labkit"] == by_runtime["llama-server"]
    assert any(note.startswith("peer: version: 0.1 (imitation)") for note in record.notes)
    assert any("-np 3" in note for note in record.notes)
    log = (folder / "llama-server-f16.log").read_text()
    assert '"cache_prompt": false' in log
    assert "llama-server-f16.log" in record.artefacts
    assert not list(Path("/dev/shm").glob("labkit-*/tiny-f16.gguf"))


@pytest.mark.parametrize(
    ("how", "said"),
    [("die", "llama-server died with code 9: the GPU is lost"), ("broken", "ended with code 3 while loading")],
)
def test_a_peer_that_fails_is_told_and_labkit_is_measured_all_the_same(
    how: str, said: str, bench: Lab, home: Path, imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMITATION", how)
    code, out, err = bench("--shape", "tiny", *SHORT, "--against", "llama-server", "--llama-server", str(imitation))
    assert code == 1
    assert said in err
    assert "Traceback" not in err
    assert "llama-server" not in out
    folder, record = only_run(home)
    assert record.state == "completed"
    assert [(check.name, check.passed) for check in record.checks] == [("llama-server ran", False)]
    rates = [row for row in samples(folder) if row["metric"] in ("decode_tok_s", "prefill_tok_s")]
    assert [row["cell"]["runtime"] for row in rates] == ["labkit"] * 6


def test_a_peer_that_reads_prompts_from_a_cache_is_no_peer(
    bench: Lab, home: Path, imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMITATION", "cache")
    code, _, err = bench("--shape", "tiny", *SHORT, "--against", "llama-server", "--llama-server", str(imitation))
    assert code == 1
    assert "took 15 tokens of the prompts from a cache" in err


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    real, calls = LabkitSide.measure, [0]

    def measure(self: LabkitSide, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] > count:
            raise error
        return real(self, *arguments)

    monkeypatch.setattr(LabkitSide, "measure", measure)


def test_an_interrupt_leaves_a_readable_record_marked_so(
    bench: Lab, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(5, monkeypatch, KeyboardInterrupt())  # three to warm up, two kept
    code, _, err = bench("--shape", "tiny", *SHORT)
    assert code == 130
    folder, record = only_run(home)
    assert (record.state, record.reason) == ("killed", "interrupted after 2 of its measurements")
    assert len({(row["cell"]["phase"], row["cell"]["streams"]) for row in samples(folder)}) == 2
    assert "kept after 2 of its measurements" in err


def test_a_failure_leaves_a_record_marked_failed(bench: Lab, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.errors import DeviceError

    interrupt_after(4, monkeypatch, DeviceError("the GPU fell off the bus"))
    code, _, err = bench("--shape", "tiny", *SHORT)
    assert code == 2
    assert "lab: the GPU fell off the bus" in err
    record = only_run(home)[1]
    assert record.state == "failed"
    assert record.reason.startswith("the GPU fell off the bus")


def test_termination_stops_the_peer_and_closes_the_record(home: Path, imitation: Path) -> None:
    arguments = ["--batch", "1", "--prompt", "none", "--generate", "60", "-r", "500"]
    command = [
        sys.executable, "-m", "labkit", "bench", "--shape", "tiny", *arguments, "--against", "llama-server",
        "--llama-server", str(imitation),
    ]  # fmt: skip
    ceilings_of(default_device())  # kept for the process, which would take its time over them
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    runs, end = home / "data" / "runs", time.monotonic() + 120
    while time.monotonic() < end and not list(runs.glob(".partial-*/measurements.csv")):
        assert started.poll() is None, started.stderr and started.stderr.read()
        time.sleep(0.1)
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 130
    folder, record = only_run(home)
    assert record.state == "killed"
    assert samples(folder)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(imitation).encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a model or a --shape"),
        (["m", "--shape", "tiny"], "give a model or a --shape"),
        (["--shape", "huge"], "shape 'huge' is not one of"),
        (["--shape", "tiny", "--quant", "q9"], "quant 'q9' is not one of"),
        (["--shape", "tiny", "--quant", "f16,f16"], "is not a list of different weight types"),
        (["--shape", "tiny", "--batch", "1,x"], "'1,x' is not whole numbers with commas"),
        (["--shape", "tiny", "--batch", "0"], "--batch 0 is not a whole number"),
        (["--shape", "tiny", "--slots", "2"], "--slots 2 is fewer than the "),
        (["--shape", "tiny", "--against", "llama-server", "--llama-server", "/nowhere"], "/nowhere is not a program"),
        (["--shape", "tiny", "--llama-server", "/bin/true"], "add --against llama-server"),
        ([str(TINY), "--quant", "q8_0"], "--quant q8_0 goes with a --shape"),
        (["/nowhere/model.gguf"], "there is no model file /nowhere/model.gguf"),
        (["ops", "--shape", "tiny", "--op", "softmax"], "'softmax' is not an operation"),
        (["ops", "--shape", "tiny", "--rows", "0"], "--rows 0 is not a whole number"),
        (["ops"], "give a model or a --shape"),
    ],
)
def test_wrong_input_is_refused_in_one_line_and_leaves_nothing(
    arguments: list[str], said: str, bench: Lab, home: Path
) -> None:
    code, out, err = bench(*arguments)
    assert code == 2
    assert said in err
    assert out == ""
    assert "Traceback" not in err
    assert not (home / "data").exists()


def test_a_chunk_the_engine_cannot_set_is_refused(bench: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.measure.bench import sides

    monkeypatch.setattr(sides, "engine_takes", lambda name: False)
    code, _, err = bench("--shape", "tiny", *SHORT, "--ub", "64", "--no-record")
    assert code == 2
    assert "--ub 64 cannot be set" in err


def test_operations_are_checked_timed_and_kept(bench: Lab, home: Path) -> None:
    code, out, _ = bench("ops", "--shape", "tiny", "--quant", "f16,q8_0", "--rows", "1,2", "--depth", "128", "-r", "2")
    assert code == 0
    folder, record = only_run(home)
    assert record.experiment == "bench-ops"
    assert all(check.passed for check in record.checks)
    assert {check.name for check in record.checks} >= {"linear equals NumPy's", "attention equals NumPy's"}
    lines = [json.loads(line) for line in (folder / "ops.jsonl").read_text().splitlines()]
    assert {line["layout"] for line in lines if line["operation"] == "linear"} == {"f16", "q8"}
    assert all(line["right"] and line["kernels"] and line["fingerprint"] for line in lines)
    assert sum(line["operation"] == "attention" for line in lines) == 2  # once, not for every type of weights
    assert all(len(line) <= 120 for line in out.splitlines() if line.startswith(("linear", "operation", "sample")))
    assert {row["metric"] for row in samples(folder)} >= {"kernel_us", "achieved_gb_s", "nmse"}


def test_a_wrong_operation_ends_with_1_and_its_check_fails(
    bench: Lab, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit.measure.ops_bench import layers

    monkeypatch.setattr(layers.rms_norm, "reference", lambda x, weight, eps: x)
    code, out, _ = bench("ops", "--shape", "tiny", "--op", "rms_norm", "--rows", "1", "-r", "2")
    assert code == 1
    assert "WRONG" in out
    folder, record = only_run(home)
    assert [check.passed for check in record.checks] == [False]
    assert {row["metric"] for row in samples(folder)} == {"nmse"}


def test_help_tells_of_both_commands(bench: Lab) -> None:
    assert "lab bench ops" in bench("--help")[1]
    assert "--op" in bench("ops", "--help")[1]
