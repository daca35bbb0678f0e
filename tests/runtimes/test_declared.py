"""What was declared beside what a process reports: names for one thing, what stops a run, what is only said."""

from pathlib import Path
from typing import Any

import pytest

from labkit.errors import RunError
from labkit.lab.lab import Lab
from labkit.runtimes.declared import compare_settings, note_settings, require_settings

TOLD: dict[str, Any] = {
    "slots": 4, "context": 256, "ub": 64, "kv": "F16", "model": "/models/llama-q8_0.gguf", "quant": "Q8_0", "draft": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "declared",
    [
        {"slots": 4, "context": 256, "ub": 64, "kv": "f16", "model": "llama-q8_0", "quant": "q8_0", "draft": 0},
        {"slots": 4.0, "ub": "64", "kv": "F16", "model": "llama-q8_0.gguf", "quant": "Q8_0 (guessed)"},
        {"cache_type": "f16", "micro_batch": 64, "quants": ["q8_0"], "drafts": None},  # other names of the same levers
        {"prompt": 4096, "tokens": 12, "seed": 3, "streams": 8},  # the workload's, not the process's
        {"ub": [32, 128]},  # a parameter that makes the cells: the cell says which
        {"draft": False},
    ],
)
def test_the_same_written_otherwise_is_no_difference(declared: dict[str, Any]) -> None:
    assert compare_settings(declared, TOLD, list(declared)) == []


def test_a_catalogue_name_is_its_file() -> None:
    told = {"model": "/elsewhere/SmolLM2-135M-Instruct.Q4_1.gguf"}
    assert compare_settings({"model": "smollm2-135m"}, told) == []


@pytest.mark.parametrize(
    ("declared", "reported", "same"),
    [
        ("q4_k", "Q4_K - Medium", True),
        ("q4_k_m", "Q4_K - Medium", True),
        ("q4_k_s", "Q4_K - Medium", False),
        ("q4_k", "Q5_K - Medium", False),
        ("f16", "BF16", False),
        ("f32", "all F32 (guessed)", True),
        ("q4_0", "Q4_1", False),
    ],
)
def test_types_of_weights_are_compared_by_type_and_then_by_mixture(declared: str, reported: str, same: bool) -> None:
    assert (compare_settings({"quant": declared}, {"quant": reported}) == []) == same


def test_a_difference_in_a_knob_stops_the_run_with_both_values() -> None:
    with pytest.raises(RunError, match=r"llama-server: the plan varies ub, declared 128 here, .* reports 64: what it"):
        require_settings("llama-server", {"ub": 128, "kv": "q8_0"}, TOLD, ["ub"])
    with pytest.raises(RunError, match="the plan varies kv, declared q8_0"):
        require_settings("llama-server", {"cache_type": "q8_0"}, TOLD, ["cache_type"])


def test_other_differences_are_returned_and_stop_nothing() -> None:
    (one,) = require_settings("llama-server", {"ub": 64, "kv": "q8_0"}, TOLD, ["ub"])
    assert one.words == "kv: declared q8_0, reported F16"
    assert not one.stops


def test_what_the_process_does_not_tell_is_said_and_is_never_taken_for_agreement() -> None:
    (one,) = compare_settings({"arithmetic": "exact", "slots": 4}, TOLD, ["arithmetic"])
    assert one.words == "arithmetic: declared exact, not told by the process"
    assert not one.stops
    assert compare_settings({"draft": 0}, {}) == []  # nothing is drafted where nothing drafts
    assert [each.name for each in compare_settings({"draft": 4}, {}, ["draft"])] == ["draft"]


def test_a_larger_context_is_said_and_a_smaller_one_stops() -> None:
    (one,) = compare_settings({"context": 250}, TOLD, ["context"])
    assert (one.stops, one.words) == (False, "context: declared 250, reported 256 (more than asked for)")
    (one,) = compare_settings({"context": 64, "slots": 4}, TOLD, ["context"])
    assert one.words == "context: declared 64, reported 256 (that of all 4 slots together)"
    with pytest.raises(RunError, match=r"varies context, declared 512 here, .* reports 256"):
        require_settings("x", {"context": 512}, TOLD, ["context"])
    assert [each.stops for each in compare_settings({"context": 512}, TOLD)] == [False]


@pytest.mark.parametrize(
    ("declared", "reported", "same"),
    [(0, "none", True), (4, "none", False), (4, "draft-simple", True), (0, "yes", False)],
)
def test_of_a_process_that_tells_how_it_drafts_it_is_known_whether(declared: int, reported: str, same: bool) -> None:
    assert (compare_settings({"draft": declared}, {"draft": reported}, ["draft"]) == []) == same


def test_the_record_keeps_what_was_reported_and_what_differs_once(tmp_path: Path) -> None:
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    (tmp_path / "lab.toml").write_text("")
    run = Lab(tmp_path).run("peers", {})
    found = compare_settings({"kv": "q8_0"}, TOLD)
    for _ in range(2):
        note_settings(run, "llama-server", TOLD, found)
    notes = run.record.notes
    run.close()
    assert [note.split(":")[0] for note in notes] == ["llama-server reports", "llama-server differs"]
    assert notes[1] == "llama-server differs: kv: declared q8_0, reported F16"
