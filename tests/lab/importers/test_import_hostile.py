"""Hostile and broken files: one clear line with file and place, soon, and the lab as it was."""

import codecs
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.audit.run_evidence import read_run
from labkit.errors import ParameterError, RunError
from labkit.lab.imported import Told, parse_settings, take_file
from labkit.lab.importers import document
from labkit.lab.importers.document import MOST_BYTES, MOST_ENTRIES, read_document
from labkit.lab.importers.registry import importer_of, importers

Altered = Callable[..., Path]
Call = Callable[..., SimpleNamespace]


def put(path: tuple[Any, ...], value: Any) -> Callable[[Any], None]:
    """A change that sets what lies at a path."""

    def change(root: Any) -> None:
        for part in path[:-1]:
            root = root[part]
        root[path[-1]] = value

    return change


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def refused(call: Call, lab: Path, path: Path, *options: str) -> str:
    """The one line that a file is refused with; the lab is as it was."""
    before, began = everything(lab), time.monotonic()
    done = call("import", path, *options)
    assert time.monotonic() - began < 30
    assert done.exit_code == 2, done
    assert everything(lab) == before
    [line] = str(done.stderr).strip().splitlines()
    assert "Traceback" not in line
    assert len(line) < 600
    return line


FIRST = ("benchmarks", 1, "requests", "successful", 0)
CASES: list[tuple[str, tuple[Any, ...], Any, str]] = [
    ("llama-bench.json", (3, "samples_ns", 1), -5, "[3].samples_ns[1] is -5, where a number from 1 to"),
    ("llama-bench.json", (3, "samples_ns", 1), 0, "[3].samples_ns[1] is 0"),
    ("llama-bench.json", (3, "samples_ns", 1), "1", "[3].samples_ns[1] is '1', where a number is expected"),
    ("llama-bench.json", (3, "samples_ns", 1), True, "[3].samples_ns[1] is true"),
    ("llama-bench.json", (3, "samples_ns", 1), None, "[3].samples_ns[1] is missing"),
    ("llama-bench.json", (3, "samples_ns", 1), 10**400, "[3].samples_ns[1] is a whole number of 1,329 bits"),
    ("llama-bench.json", (1, "samples_ns"), {"a": 1}, "[1].samples_ns is an object of 1, where a list of numbers"),
    ("llama-bench.json", (1, "samples_ns"), [], "[1].samples_ns is empty"),
    ("llama-bench.json", (1, "samples_ts"), [1.0], "[1].samples_ts has 1 rates for 5 times"),
    ("llama-bench.json", (1, "n_prompt"), 1.5, "[1].n_prompt is 1.5, where a whole number is expected"),
    ("llama-bench.json", (1, "n_prompt"), 0, "[1] tests nothing"),
    ("llama-bench.json", (1, "n_prompt"), [512], "[1].n_prompt is a list of 1, where a number is expected"),
    ("llama-bench.json", (1, "test_time"), "noon", "[1].test_time is 'noon'"),
    ("llama-bench.json", (1, "test_time"), "9999-12-31T23:59:59Z", "[1].test_time is '9999-12-31T23:59:59Z'"),
    ("llama-bench.json", (1, "model_type"), "x" * 5000, "[1].model_type is a text of 5,000 characters"),
    ("llama-bench.json", (1, "gpu_info"), "a\nb", "[1].gpu_info holds characters that cannot be printed"),
    ("llama-bench.json", (1, "gpu_info"), "\ud800", "[1].gpu_info holds characters that cannot be printed"),
    ("llama-bench.json", (2,), 7, "[2] is no object"),
    ("llama-bench.json", (2,), None, "[2] is no object"),
    ("llama-bench.json", (1, "avg_ts"), float("nan"), "[1].avg_ts is nan, which is no measured value"),
    ("llama-bench.json", (1, "samples_ns", 2), float("inf"), "[1].samples_ns[2] is inf, which is no measured value"),
    ("vllm.json", ("duration",), -1, "duration is -1"),
    ("vllm.json", ("duration",), 0, "duration is 0"),
    ("vllm.json", ("itls", 1, 2), -0.1, "itls[1][2] is -0.1"),
    ("vllm.json", ("itls",), 5, "itls is 5, where a list is expected"),
    ("vllm.json", ("ttfts", 0), "soon", "ttfts[0] is 'soon'"),
    ("vllm.json", ("output_lens", 0), 4.5, "output_lens[0] is 4.5"),
    ("vllm.json", ("model_id",), ["a"], "model_id is a list of 1, where a text is expected"),
    ("guidellm.json", ("benchmarks",), [], "is a report without a benchmark"),
    ("guidellm.json", ("benchmarks", 1), "x", "benchmarks[1] is 'x'"),
    ("guidellm.json", ("benchmarks", 1, "metrics"), 3, "benchmarks[1].metrics is 3"),
    ("guidellm.json", (*FIRST, "time_to_first_token_ms"), -1, "successful[0].time_to_first_token_ms is -1"),
    ("guidellm.json", (*FIRST, "info", "timings", "last_token_iteration"), 1.0, "last_token_iteration lies before"),
    ("guidellm.json", ("benchmarks", 0, "start_time"), 1e12, "benchmarks[0].start_time is"),
    ("guidellm.json", ("benchmarks", 0, "config", "strategy"), "poisson", "benchmarks[0].config.strategy is 'poisson'"),
    ("aiperf.json", ("request_latency", "p50"), -3, "request_latency.p50 is -3"),
    ("aiperf.json", ("input_config", "phases", 1, "concurrency"), 0, "concurrency is 0"),
    ("aiperf.json", ("start_time",), 5, "start_time is 5, where a text is expected"),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize(("name", "path", "value", "said"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_a_value_that_cannot_be_is_named_with_file_and_place(
    call: Call, lab: Path, altered: Altered, name: str, path: tuple[Any, ...], value: Any, said: str
) -> None:
    line = refused(call, lab, altered(name, put(path, value)))
    assert f"altered-{name}: " in line
    assert said in line


@pytest.mark.quick
@pytest.mark.parametrize(
    "name", ["llama-bench.json", "vllm.json", "guidellm.json", "aiperf.json", "batched-bench.jsonl"]
)
def test_a_file_cut_anywhere_is_refused_with_the_line_where_it_ends(
    call: Call, lab: Path, samples: Path, tmp_path: Path, name: str
) -> None:
    content = (samples / name).read_bytes()
    for share in (0.03, 0.31, 0.62, 0.97):
        cut = tmp_path / name
        cut.write_bytes(content[: int(len(content) * share)])
        line = refused(call, lab, cut)
        assert f"{name}: line " in line
        assert "no JSON" in line


@pytest.mark.quick
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is none of a run's zip, aiperf"),
        (b"   \n\n", "is none of a run's zip"),
        (b"build,n_prompt\n1,2\n", "it begins with 'build,n_prompt"),
        (b"{}", "is none of a run's zip"),
        (b"[]", "is none of a run's zip"),
        (b"[[]]", "is none of a run's zip"),
        (b"[1, 2]", "is none of a run's zip"),
        (b'{"benchmarks": {}}', "is none of a run's zip"),
        (b"\x00\x01\x02\xff\xfe" * 20, "byte 3 is no text"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "no JSON"),
        (b'{"a": 1}\n{"a": 2}\nnot json\n', "line 3, column 1: no JSON"),
        (b'{"a": 1}\n{"a": NaN}\n', "line 2: a is nan"),
        (b'\xef\xbb\xbf{"a": 1}', "is none of a run's zip"),
        (b"PK\x03\x04 and no more", "is not a zip"),
    ],
    ids=range(15),
)
def test_a_file_that_is_none_of_them_is_refused_with_the_formats_there_are(
    call: Call, lab: Path, tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(content)
    line = refused(call, lab, path)
    assert said in line
    assert "file.bin" in line


def test_a_list_of_ten_million_entries_is_refused_with_its_place(call: Call, lab: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text('[{"n_prompt": 512, "n_gen": 0, "samples_ns": [' + "1," * 9_999_999 + "1]}]")
    line = refused(call, lab, path)
    assert "long.json: [0].samples_ns is a list of 10,000,000, of 1,000,000 at the most" in line


def test_more_values_than_fit_into_memory_are_refused_before_they_are_parsed(
    call: Call, lab: Path, tmp_path: Path
) -> None:
    path = tmp_path / "wide.json"
    path.write_text("[" + "{}," * 3_000_000 + "{}]")
    assert "wide.json holds about 3,000,001 objects, of 2,000,000 at the most" in refused(call, lab, path)


def test_a_field_of_a_gigabyte_is_refused_by_the_size_of_its_file(call: Call, lab: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.write(b'[{"model_type": "')
        file.truncate(1 << 30)  # a hole, which takes no space
    assert f"large.json has 1,073,741,824 bytes, of {MOST_BYTES:,} at the most" in refused(call, lab, path)


@pytest.mark.quick
def test_a_list_just_short_enough_is_no_fault_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_ENTRIES == 1_000_000
    monkeypatch.setattr(document, "MOST_ENTRIES", 4)
    path = tmp_path / "four.json"
    path.write_text('{"a": [1, 2, 3, 4]}')
    read_document(path)
    path.write_text('{"a": [1, 2, 3, 4, 5]}')
    with pytest.raises(RunError, match="a is a list of 5, of 4 at the most"):
        read_document(path)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "streams"], "has no value"),
        (["--set", "streams=many"], "streams is 'many'"),
        (["--set", "streams=0"], "streams is 0"),
        (["--set", "streams=-2"], "streams is -2"),
        (["--set", "streams=NaN"], "streams is nan"),
        (["--set", "streams=1e400"], "streams is inf"),
        (["--set", "slots=true"], "slots is True"),
        (["--set", "n_ubatch=128"], "the file says that n_ubatch is 512, so --set cannot make it 128"),
        (["--set", "streams=4"], "the file says that streams is 1"),
        (["--set", "n_gen=5"], "the file says that n_gen is 0, so --set cannot make it 5"),
        (["--set", "model_n_params=5"], "the file says that model_n_params is 8190735360"),
        (["--set", "n_params=5"], "--set does not know n_params; it knows active_params, cache, depth"),
        (["--set", "gpu_wibble=3"], "--set does not know gpu_wibble; it knows active_params, cache, depth"),
        (["--set", "active_params=9e9"], "the file's model has 8,190,735,360 parameters"),
        (["--device", "NVIDIA H200"], "the file says that the device is 'AMD Radeon AI PRO R9700 (RADV GFX1201)'"),
        (["--device", "2x R9700"], "so --device cannot make it '2x R9700'"),
        (["--set", "a=1", "--set", "a=2"], "gives a twice"),
        (["--set", "device=a card"], "use --device"),
        (["--set", "format=vllm"], "cannot be set"),
        (["--set", "Ub Batch=1"], "cannot be set"),
        (["--set", "api_key=abc"], "the name of a secret"),
        (["--set", "started=noon"], "started is 'noon'"),
        (["--set", "quant="], "quant is ''"),
        (["--device", ""], "--device is ''"),
        (["--model", "a\nb"], "--model is"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused(
    call: Call, lab: Path, samples: Path, options: list[str], said: str
) -> None:
    assert said in refused(call, lab, samples / "llama-bench.json", *options)


@pytest.mark.quick
def test_a_missing_file_a_folder_and_options_for_a_zip_are_refused(call: Call, lab: Path, tmp_path: Path) -> None:
    assert "there is no file" in refused(call, lab, tmp_path / "none.json")
    assert "is not a file" in refused(call, lab, tmp_path)
    zipped = tmp_path / "run.zip"
    zipped.write_bytes(b"PK\x05\x06" + bytes(18))
    assert "leave these options out" in refused(call, lab, zipped, "--device", "a card")


@pytest.mark.quick
def test_a_lab_that_cannot_be_written_says_so_and_nothing_is_left(
    lab: Path, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("labkit.lab.imported.append_rows", full)
    before = everything(lab)
    with pytest.raises(RunError, match="No space left on device; nothing was imported"):
        take_file(lab, samples / "llama-bench.json")
    assert everything(lab) == before


@pytest.mark.quick
def test_a_file_that_powershell_wrote_in_utf_16_is_read_like_any_other(
    lab: Path, samples: Path, tmp_path: Path
) -> None:
    wide = tmp_path / "wide.json"
    wide.write_bytes(codecs.BOM_UTF16_LE + (samples / "llama-bench.json").read_text().encode("utf-16-le"))
    taken = take_file(lab, wide)
    assert taken.record.model == take_file(lab, samples / "llama-bench.json").record.model


@pytest.mark.quick
def test_every_sample_file_is_read_by_exactly_one_importer(samples: Path) -> None:
    files = [path for path in samples.iterdir() if path.suffix != ".md"]
    assert {importer_of(read_document(path)).name for path in files} == set(importers())
    for path in files:
        known = read_document(path)
        assert sum(one.recognises(known) for one in importers().values()) == 1


@pytest.mark.quick
def test_settings_are_numbers_truths_or_texts() -> None:
    texts = ["streams=8", "flash=true", "quant=q4_k_m", "note=[1]", "empty=null", "x=a=b"]
    found = {"streams": 8, "flash": True, "quant": "q4_k_m", "note": "[1]", "empty": "null", "x": "a=b"}
    assert parse_settings(texts) == found
    with pytest.raises(ParameterError):
        Told(settings={"streams": -1})


def test_any_value_replaced_by_any_other_is_imported_or_refused_in_one_line(
    lab: Path, samples: Path, tmp_path: Path
) -> None:
    """Each value of each sample, replaced by each of a few that do not belong there: never another error."""
    strange: tuple[Any, ...] = (None, True, -1, 1e308, "x", [], {}, [1], {"unit": "ms"}, "\x00", 10**30)
    for name in ("llama-bench.json", "vllm.json", "guidellm.json", "aiperf.json"):
        original = json.loads((samples / name).read_text())
        path = tmp_path / name
        for place in places(original)[::9]:
            for value in strange:
                changed = json.loads(json.dumps(original))
                put(place, value)(changed)
                path.write_text(json.dumps(changed))
                said = fault_of(lab, path)
                assert "\n" not in said
                assert not said or name in said


def fault_of(lab: Path, path: Path) -> str:
    """What is wrong with a file; nothing where it is imported, which leaves a record that can be read."""
    try:
        taken = take_file(lab, path)
    except RunError as error:
        return str(error)
    read_run(taken.folder, lab)
    shutil.rmtree(taken.folder)
    return ""


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside another."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, item in members for place in ((*before, name), *places(item, (*before, name)))]
