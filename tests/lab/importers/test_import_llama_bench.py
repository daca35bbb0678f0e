"""llama-bench and llama-batched-bench: what their rows say becomes cells, and nothing else does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import RunError
from labkit.lab.importers.document import read_document
from labkit.lab.importers.llama_bench import weights_of
from labkit.lab.importers.registry import Contents, importer_of

pytestmark = pytest.mark.quick
Altered = Callable[..., Path]


def read(path: Path) -> Contents:
    document = read_document(path)
    return importer_of(document).read(document)


def phases(contents: Contents) -> list[dict[str, Any]]:
    return list({json.dumps(dict(one.knobs), sort_keys=True): dict(one.knobs) for one in contents.measured}.values())


def test_each_raw_sample_of_llama_bench_is_a_repetition_by_its_own_time(samples: Path) -> None:
    contents = read(samples / "llama-bench.json")
    prefill = [
        one.metrics for one in contents.measured if one.knobs.get("prompt") == 512 and "generate" not in one.knobs
    ]
    times = (166100000, 165000000, 165900000, 167200000, 166400000)  # samples_ns of the first row
    assert prefill == [{"prefill_tok_s": 512 / (ns / 1e9)} for ns in times]
    decode = [one.metrics for one in contents.measured if one.knobs["phase"] == "decode" and one.knobs["depth"] == 4096]
    assert decode[0] == {"decode_tok_s": 128 / 1.702, "step_ms": 1e3 * 1.702 / 128}
    assert len(decode) == 5


def test_a_test_that_reads_and_emits_counts_the_emitted_tokens_alone(samples: Path) -> None:
    both = [one for one in read(samples / "llama-bench.json").measured if one.knobs["phase"] == "mixed"]
    assert both[0].metrics == {"total_tok_s": 128 / 1.59, "makespan_s": 1.59}


def test_n_batch_is_a_setting_and_every_test_of_llama_bench_has_one_stream(samples: Path) -> None:
    contents = read(samples / "llama-bench.json")
    assert {one.knobs["streams"] for one in contents.measured} == {1}
    assert contents.settings["n_batch"] == 2048
    assert not any("n_batch" in one.knobs or "batch" in one.knobs for one in contents.measured)


def test_a_setting_that_varies_within_a_file_is_a_knob_of_its_cells(samples: Path) -> None:
    contents = read(samples / "llama-bench.jsonl")
    assert [knobs["n_ubatch"] for knobs in phases(contents)] == [512, 2048]
    assert "n_ubatch" not in contents.settings


def test_the_conditions_of_llama_bench_are_kept_and_the_path_of_its_model_is_not(samples: Path) -> None:
    contents = read(samples / "llama-bench.json")
    assert contents.device == {"name": "AMD Radeon AI PRO R9700 (RADV GFX1201)", "backends": "Vulkan"}
    assert contents.model == {
        "name": "Qwen3-8B-Q4_K_M", "file": "Qwen3-8B-Q4_K_M.gguf", "type": "qwen3 8B Q4_K - Medium",
        "size_bytes": 5027783168, "parameters": 8190735360,
    }  # fmt: skip
    assert contents.packages == {"llama.cpp": "4e0388aa (7231)"}
    assert contents.processor == "AMD EPYC 9684X 96-Core Processor"
    assert contents.started is not None
    assert contents.started.isoformat() == "2026-08-01T10:00:00+00:00"


def test_a_row_with_no_layer_on_the_card_has_no_known_device(altered: Altered) -> None:
    contents = read(altered("llama-bench.json", lambda rows: rows[0].update(n_gpu_layers=0)))
    assert contents.device is None
    assert "n_gpu_layers 0" in contents.notes[0]


def test_a_build_for_the_processor_ran_on_the_processor(altered: Altered) -> None:
    def on_processor(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row.update(backends="CPU", gpu_info="")

    device = read(altered("llama-bench.json", on_processor)).device
    assert device == {"name": "AMD EPYC 9684X 96-Core Processor", "type": "cpu", "backends": "CPU"}


def test_two_models_in_one_file_are_told_apart_by_their_cells(altered: Altered) -> None:
    contents = read(altered("llama-bench.json", lambda rows: rows[1].update(model_filename="C:\\models\\other.gguf")))
    assert contents.model is None
    assert {one.knobs["model"] for one in contents.measured} == {"Qwen3-8B-Q4_K_M", "other"}


def test_two_builds_in_one_file_are_refused(altered: Altered) -> None:
    with pytest.raises(RunError, match="holds rows of 2 builds"):
        read(altered("llama-bench.json", lambda rows: rows[1].update(build_number=7232)))


def test_rates_that_are_not_tokens_over_times_are_refused(altered: Altered) -> None:
    def other(rows: list[dict[str, Any]]) -> None:
        rows[2]["samples_ts"][3] *= 1.02

    with pytest.raises(RunError, match=r"\[2\]\.samples_ts\[3\] is 92\.6.* tok/s, but 128 tokens"):
        read(altered("llama-bench.json", other))


@pytest.mark.parametrize(("name", "factor"), [("avg_ts", 1.1), ("avg_ns", 0.9), ("avg_ts", 0.0)])
def test_an_average_that_is_not_that_of_the_samples_is_refused(altered: Altered, name: str, factor: float) -> None:
    path = altered("llama-bench.json", lambda rows: rows[0].update({name: factor * rows[0][name]}))
    with pytest.raises(RunError, match=rf"\[0\]\.{name} is .*, but its \d+ samples have a mean of "):
        read(path)


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("qwen3 8B Q4_K - Medium", "q4_k_m"), ("llama 7B Q5_K - Small", "q5_k_s"), ("llama 1B all F32", "f32"),
        ("llama 1B F16", "f16"), ("gpt-oss 20B MXFP4 MoE", "mxfp4_moe"), ("qwen3moe 30B.A3B Q8_0", "q8_0"),
        ("llama 8B IQ4_XS - 4.25 bpw", "iq4_xs"), ("llama 8B BF16", "bf16"), ("a model", None), (None, None),
    ],
)  # fmt: skip
def test_the_type_of_the_weights_is_read_off_the_models_type(kind: str | None, weights: str | None) -> None:
    assert weights_of(kind) == weights


def test_a_table_of_batched_bench_is_what_its_json_lines_are(samples: Path) -> None:
    table, lines = (read(samples / f"batched-bench.{ending}") for ending in ("txt", "jsonl"))
    assert [(one.knobs, one.metrics) for one in table.measured] == [(one.knobs, one.metrics) for one in lines.measured]
    assert table.settings == lines.settings
    assert table.settings["is_pp_shared"] == 0
    assert table.settings["n_batch"] == 2048


def test_streams_of_batched_bench_are_its_sequences_and_its_rates_those_of_all(samples: Path) -> None:
    eight = [one for one in read(samples / "batched-bench.jsonl").measured if one.knobs["streams"] == 8]
    assert [one.knobs["phase"] for one in eight] == ["prefill", "decode"]
    assert eight[0].metrics == {"prefill_tok_s": 8 * 128 / 0.751}
    assert eight[1].knobs["depth"] == 128
    assert eight[1].metrics["decode_tok_s"] == 8 * 128 / 3.578
    assert eight[1].metrics["step_ms"] == pytest.approx(1e3 * 3.578 / 128, rel=1e-12)


def test_a_prompt_that_all_sequences_share_is_read_once(tmp_path: Path, samples: Path) -> None:
    text = (samples / "batched-bench.txt").read_text().splitlines()
    row = "|   128 |    128 |    4 |    640 |    0.108 |  1185.19 |    3.203 |   159.85 |    3.311 |   193.29 |"
    shared = tmp_path / "shared.txt"
    shared.write_text("\n".join([*text[2:4], row]) + "\n")  # the lines of settings are not there: n_kv tells
    prefill = read(shared).measured[0]
    assert prefill.metrics == {"prefill_tok_s": 128 / 0.108}
    assert prefill.knobs["shared_prompt"] is True


def test_a_table_that_is_cut_short_is_refused_with_its_line(tmp_path: Path, samples: Path) -> None:
    text = (samples / "batched-bench.txt").read_text().rstrip()
    short = tmp_path / "short.txt"
    short.write_text(text[:-30])
    with pytest.raises(RunError, match=r"short\.txt: line 8 has \d columns, where the table has 10"):
        read(short)
