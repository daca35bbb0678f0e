"""An imported file is a run like any other: listed, audited, compared, published, exported; and the same one each time."""

import csv
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.audit.registry import detectors
from labkit.audit.run_evidence import read_run
from labkit.errors import ParameterError, RunError
from labkit.lab.capture import sha256_file
from labkit.lab.export import export_run
from labkit.lab.imported import Taken, Told, take_file
from labkit.lab.importing import import_run
from labkit.lab.record import read_record

pytestmark = pytest.mark.quick
Call = Callable[..., SimpleNamespace]
R9700 = "AMD Radeon AI PRO R9700"
NAMES = (
    "llama-bench.json", "llama-bench.jsonl", "batched-bench.txt", "batched-bench.jsonl", "vllm.json",
    "vllm-summary.json", "guidellm.json", "aiperf.jsonl", "aiperf.json",
)  # fmt: skip


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_the_original_is_kept_byte_for_byte_in_a_completed_exploratory_run(lab: Path, samples: Path, name: str) -> None:
    taken = take_file(lab, samples / name)
    record = read_record(taken.folder)
    assert taken.folder == lab / "data" / "runs" / record.id
    assert (record.experiment, record.state, record.exploratory) == ("imported", "completed", True)
    assert (record.notebook, record.plan_hash, record.git) == (None, None, None)
    [original] = [file for file in record.artefacts if file.startswith("original.")]
    assert (taken.folder / original).read_bytes() == (samples / name).read_bytes()
    assert record.artefacts[original] == sha256_file(samples / name)
    assert record.name == name
    assert all(sha256_file(taken.folder / file) == known for file, known in record.artefacts.items())


@pytest.mark.parametrize("name", NAMES)
def test_importing_a_file_again_says_so_and_changes_nothing(call: Call, lab: Path, samples: Path, name: str) -> None:
    first = call("import", samples / name, "--no-page", "--set", "note=one")
    assert first.exit_code == 0, first
    before = contents(lab)
    again = call("import", samples / name, "--no-page", "--set", "note=one")
    assert again.exit_code == 0
    assert "is here already; nothing was changed" in again.stderr
    assert contents(lab) == before


def test_a_file_by_another_name_in_another_lab_is_the_same_run(tmp_path: Path, lab: Path, samples: Path) -> None:
    other = tmp_path / "moved.json"
    other.write_bytes((samples / "vllm.json").read_bytes())
    assert take_file(tmp_path / "elsewhere", other).record.id == take_file(lab, samples / "vllm.json").record.id


def test_other_settings_make_another_run_and_the_first_is_named(call: Call, lab: Path, samples: Path) -> None:
    first = take_file(lab, samples / "vllm.json")
    second = take_file(lab, samples / "vllm.json", Told(device=R9700))
    assert first.record.id != second.record.id
    assert second.same_file == (first.record.id,)
    said = call("import", samples / "vllm.json", "--no-page", "--set", "slots=2").stderr
    assert f"careful: {first.record.id} is of the same file, with other settings" in said


def test_two_imports_at_once_leave_one_run(lab: Path, samples: Path) -> None:
    taken: list[Taken] = []
    threads = [
        threading.Thread(target=lambda: taken.append(take_file(lab, samples / "guidellm.json"))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.new for one in taken) == [False] * 5 + [True]
    assert len(list((lab / "data" / "runs").iterdir())) == 1


def test_a_run_whose_original_was_changed_is_not_taken_for_the_file(lab: Path, samples: Path) -> None:
    taken = take_file(lab, samples / "vllm.json")
    (taken.folder / "original.json").write_text("{}")
    with pytest.raises(RunError, match=r"original\.json was changed since it was imported"):
        take_file(lab, samples / "vllm.json")


def test_what_the_file_does_not_say_stays_unknown(lab: Path, samples: Path) -> None:
    record = take_file(lab, samples / "batched-bench.txt").record
    assert record.device is None
    assert record.model is None
    assert record.host.cpu == "unknown"
    assert record.host.boot_id is None
    assert record.packages == {}
    assert record.started.startswith("1970-01-01")
    assert any(note.startswith("times: the file does not say when") for note in record.notes)


def test_a_time_told_by_hand_is_when_it_was_measured(lab: Path, samples: Path) -> None:
    told = Told(settings={"started": "2026-11-30T22:00:00+02:00"})
    record = take_file(lab, samples / "batched-bench.txt", told).record
    assert record.started == "2026-11-30T20:00:00Z"
    assert record.id.startswith("20261130T200000Z-imported-")
    assert "started" not in record.parameters


def test_conditions_reach_the_evidence_and_unknown_ones_do_not(lab: Path, samples: Path) -> None:
    found = read_run(take_file(lab, samples / "llama-bench.json").folder, lab).observations
    deep = next(one for one in found if one.phase == "decode" and one.depth == 4096)
    assert deep.device is not None
    assert deep.device.name == R9700
    assert (deep.model, deep.quantisation, deep.backend) == ("Qwen3-8B-Q4_K_M", "q4_k_m", "llama.cpp")
    assert (deep.streams, deep.output_tokens, deep.tokens_per_pass_max) == (1.0, 128.0, 1.0)
    assert deep.repetitions == 5
    assert deep.source == "llama-bench"
    [plain] = read_run(take_file(lab, samples / "vllm-summary.json").folder, lab).observations
    unknown = (plain.device, plain.device_name, plain.streams, plain.slots, plain.prompt_tokens, plain.depth)
    assert unknown == (None,) * 6
    assert (plain.backend, plain.tokens_per_pass_max, plain.quantisation) == (None, None, None)


def test_what_is_told_by_hand_reaches_the_evidence(lab: Path, samples: Path) -> None:
    settings = {
        "streams": 32, "slots": 16, "prompt": 256, "generate": 128, "depth": 0, "quant": "fp8", "runtime": "vllm",
        "draft": 0, "active_params": 8.2e9, "cache": "cold",
    }  # fmt: skip
    told = Told(device="R9700", model="Qwen3-8B", settings=settings)
    taken = take_file(lab, samples / "vllm-summary.json", told)
    [one] = read_run(taken.folder, lab).observations
    assert one.device is not None
    assert one.device.name == R9700
    assert (one.streams, one.slots, one.prompt_tokens, one.output_tokens, one.depth) == (32, 16, 256, 128, 0)
    assert (one.quantisation, one.bytes_per_weight, one.active_params) == ("fp8", 1.0, 8.2e9)
    assert (one.backend, one.tokens_per_pass_max, one.cache) == ("vllm", 1.0, "cold")
    assert any(note.startswith("model: told by hand; the file says Qwen/Qwen3-8B-AWQ") for note in taken.record.notes)


def test_requests_of_a_closed_loop_are_not_counted_as_streams(lab: Path, samples: Path) -> None:
    """The records of aiperf hold four requests, of which at most two were under way at once."""
    [one] = read_run(take_file(lab, samples / "aiperf.jsonl").folder, lab).observations
    assert len(one.requests) == 4
    assert one.streams is None


def test_an_imported_rate_above_what_the_memory_gives_is_withheld(call: Call, lab: Path, tmp_path: Path) -> None:
    """8.2e9 weights of 1.0625 bytes 150 times a second are 1,307 GB/s, of 640 GB/s that the card has."""
    row = {
        "build_commit": "4e0388aa", "gpu_info": R9700, "backends": "Vulkan", "model_filename": "Qwen3-8B-Q8_0.gguf",
        "model_type": "qwen3 8B Q8_0", "n_batch": 2048, "n_prompt": 0, "n_gen": 128, "n_depth": 0,
        "test_time": "2026-08-01T10:00:00Z", "samples_ns": [853333333] * 3,
    }  # fmt: skip
    path = tmp_path / "too-fast.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"n_prompt": 512, "n_gen": 0}) + "\n")
    unknown = call("import", path, "--no-page")
    assert unknown.exit_code == 0, unknown  # a mixture of experts might read fewer weights
    known = call("import", path, "--no-page", "--set", "active_params=8.2e9")
    assert known.exit_code == 3
    assert "above-roofline" in known.stderr


def test_a_fail_of_a_run_in_no_ledger_is_waived_with_a_reason_that_stands_on_its_page(
    call: Call, lab: Path, tmp_path: Path
) -> None:
    row = {
        "build_commit": "4e0388aa", "gpu_info": R9700, "backends": "Vulkan", "model_filename": "Qwen3-8B-Q8_0.gguf",
        "model_type": "qwen3 8B Q8_0", "n_batch": 2048, "n_prompt": 0, "n_gen": 128, "n_depth": 0,
        "test_time": "2026-08-01T10:00:00Z", "samples_ns": [853333333] * 3,
    }  # fmt: skip
    path = tmp_path / "too-fast.jsonl"
    path.write_text(json.dumps(row) + "\n")
    known = call("import", path, "--no-page", "--set", "active_params=8.2e9")
    run = next((lab / "data" / "runs").iterdir()).name
    assert known.exit_code == 3
    assert f"./lab ledger waive {run} DETECTOR --reason ... sets one aside" in known.stderr
    assert "a run without a plan is in no ledger" in known.stderr
    assert call("audit").exit_code == 3
    other = call("ledger", "waive", run, "littles-law", "--reason", "no")
    assert other.exit_code == 2
    assert "has no fault 'littles-law'; it has: " in other.stderr
    failed = other.stderr.partition("it has: ")[2].strip().split(", ")
    for detector in failed:
        assert call("ledger", "waive", run[-8:], detector, "--reason", "a mixture <of> experts").exit_code == 0
    assert call("audit").exit_code == 0
    assert call("import", path, "--no-page", "--set", "active_params=8.2e9").exit_code == 0
    assert call("ledger", "verify").exit_code == 0
    assert call("publish", "--strict").exit_code == 0
    page = (lab / "site" / "runs" / run / "index.html").read_text()
    assert page.count("a mixture &lt;of&gt; experts") == len(failed)


def test_runs_audit_compare_and_publish_work_on_an_imported_run(
    call: Call, lab: Path, samples: Path, tmp_path: Path
) -> None:
    assert call("import", samples / "llama-bench.json").exit_code == 0
    faster = json.loads((samples / "llama-bench.json").read_text())
    for row in faster:
        row.update(build_commit="5f0388bb", build_number=7300, test_time="2026-09-01T10:00:00Z")
        row["samples_ns"] = [ns // 2 for ns in row["samples_ns"]]
        for name in ("samples_ts", "avg_ns", "avg_ts"):
            del row[name]
    later = tmp_path / "later.json"
    later.write_text(json.dumps(faster))
    document = json.loads(call("import", later, "--json").stdout)
    old, new = sorted(path.name for path in (lab / "data" / "runs").iterdir())
    assert document["id"] == new
    listed = call("runs")
    assert old in listed.stdout
    assert "imported" in listed.stdout
    audited = call("audit", new, "--json")
    assert audited.exit_code == 0, audited
    compared = json.loads(call("compare", old, new, "--json").stdout)
    ratios = {cell["ratio"] for cell in compared["cells"]}
    assert len(compared["cells"]) == 5
    assert all(ratio == pytest.approx(2, rel=1e-3) for ratio in ratios)
    assert not compared["paired"]
    assert "Only the build differs" in compared["bound"]
    [build] = [one for one in compared["differences"] if one["kind"] == "build"]
    assert (build["name"], build["old"], build["new"]) == ("llama.cpp", "4e0388aa (7231)", "5f0388bb (7300)")
    published = call("publish")
    assert published.exit_code == 0, published
    pages = "".join(path.read_text() for path in (lab / "site").rglob("*.html"))
    assert old in pages
    assert "Qwen3-8B-Q4_K_M" in pages
    assert "/home/someone" not in pages
    assert "ram_bytes" not in pages


def test_a_run_of_an_unknown_time_is_listed_audited_and_published(call: Call, lab: Path, samples: Path) -> None:
    assert call("import", samples / "batched-bench.txt", "--device", R9700).exit_code == 0
    [folder] = (lab / "data" / "runs").iterdir()
    with (folder / "measurements.csv").open(newline="") as file:
        assert {row["utc"] for row in csv.DictReader(file)} == {""}
    assert call("runs").exit_code == 0
    assert call("audit", folder.name).exit_code == 0
    table = take_file(lab, samples / "batched-bench.jsonl").record.id  # the same numbers, at a time unknown as well
    compared = json.loads(call("compare", folder.name, table, "--json").stdout)
    assert {cell["ratio"] for cell in compared["cells"]} == {1.0}
    assert not compared["paired"]
    assert call("publish").exit_code == 0


def test_an_imported_run_travels_to_another_lab_as_a_zip_with_its_paths_masked(
    lab: Path, samples: Path, tmp_path: Path
) -> None:
    taken = take_file(lab, samples / "llama-bench.json")
    done = export_run(taken.folder, tmp_path / "run.zip")
    assert done.reveals["machine"] == "AMD EPYC 9684X 96-Core Processor"  # the rest is unknown, and not 0 cores
    home = tmp_path / "home"
    came = import_run(home, done.path)
    assert came.record.parameters == taken.record.parameters
    assert b"/home/someone" not in (came.folder / "original.json").read_bytes()
    assert (came.folder / "measurements.csv").read_bytes() == (taken.folder / "measurements.csv").read_bytes()


def test_secrets_of_the_file_do_not_reach_the_record(lab: Path, tmp_path: Path, samples: Path) -> None:
    secret = "hf_" + "a1B2c3D4" * 4
    document = json.loads((samples / "vllm.json").read_text())
    document["label"] = f"run with {secret}"
    document["errors"][4] = f"denied for {secret}"
    path = tmp_path / "secret.json"
    path.write_text(json.dumps(document))
    folder = take_file(lab, path).folder
    kept = (folder / "run.json").read_text() + (folder / "requests.jsonl").read_text()
    assert secret not in kept
    assert "<secret>" in kept


def test_a_setting_may_say_again_what_the_file_says_and_nothing_else(lab: Path, samples: Path) -> None:
    take_file(lab, samples / "llama-bench.json", Told(settings={"streams": 1, "n_ubatch": 512}))
    with pytest.raises(ParameterError, match="the file says that streams is 1, so --set cannot make it 2"):
        take_file(lab, samples / "llama-bench.json", Told(settings={"streams": 2}))


def test_a_device_may_be_called_by_another_of_its_names(lab: Path, samples: Path) -> None:
    taken = take_file(lab, samples / "llama-bench.json", Told(device="R9700"))
    assert taken.record.device is not None
    assert taken.record.device["name"] == "R9700"


def test_streams_of_a_closed_loop_are_witnessed_by_the_requests_at_work_at_once(lab: Path, samples: Path) -> None:
    """Four requests of one stream are as many rows as four of two: only their times tell how many were at work."""
    document = json.loads((samples / "guidellm.json").read_text())
    one, two = document["benchmarks"][:2]
    assert len(two["requests"]["successful"]) == 4
    more = json.loads(json.dumps(one["requests"]["successful"][-1]).replace("17855808", "17855809"))
    one["requests"]["successful"].append(more)
    one["metrics"]["request_totals"]["successful"] = 4
    two["requests"]["errored"] = []
    path = lab / "closed.json"
    path.write_text(json.dumps(document))
    assert witness_of(lab, path) == "ok"
    for request in two["requests"]["successful"]:  # and where no times are told, nothing is known
        del request["info"]["timings"]["request_start"], request["request_start_time"]
    path.write_text(json.dumps(document))
    assert witness_of(lab, path) == "not assessable"


def witness_of(lab: Path, path: Path) -> str:
    """What the detector of levers without effect says of the streams of an imported file."""
    evidence = read_run(take_file(lab, path).folder, lab)
    [notice] = [notice for notice in detectors()["lever-witness"].notices(evidence) if "streams" in notice.text]
    return notice.outcome
