"""What was declared beside what a process reports: names for one thing, what stops a run, what is only said."""

from pathlib import Path
from typing import Any

import pytest

from labkit.audit.detectors.lever_witness import lever_witness
from labkit.audit.run_evidence import read_run
from labkit.errors import RunError
from labkit.lab.lab import Lab
from labkit.lab.plan import Plan, Rule
from labkit.runtimes.declared import COLUMN, compare_settings, note_runtime, note_settings, require_settings
from labkit.runtimes.runtime import Abilities, Runtime

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


class Reporting(Runtime):
    """A runtime of which only the settings and the description are asked."""

    name = label = "llama-server"
    model = "m"
    can = Abilities()

    def __init__(self, port: int) -> None:
        self.port = port

    def settings(self) -> dict[str, Any]:
        return TOLD

    def describe(self) -> dict[str, Any]:
        words = ["/opt/llama server", "--port", str(self.port), "-np", 4]
        return {"kind": "llama-server", "version": "version: 9000", "build": None, "arguments": words}

    def tokenize(self, text: str) -> list[int]:
        raise NotImplementedError

    detokenize = stream = counters = tokenize  # type: ignore[assignment]

    def close(self) -> None:
        """Nothing."""


def test_the_record_keeps_once_what_a_runtime_is_what_it_reports_and_what_differs(tmp_path: Path) -> None:
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    (tmp_path / "lab.toml").write_text("")
    run = Lab(tmp_path).run("peers", {})
    found = compare_settings({"kv": "q8_0"}, TOLD)
    for port in (40001, 40002):  # started twice
        note_runtime(run, Reporting(port))
        note_settings(run, "llama-server", TOLD, found)
    notes = run.record.notes
    run.close()
    assert notes == (
        "llama-server is: llama-server, version: 9000: '/opt/llama server' --port PORT -np 4",
        "llama-server reports: slots 4, context 256, ub 64, kv F16, model /models/llama-q8_0.gguf, quant Q8_0, draft 0",
        "llama-server differs: kv: declared q8_0, reported F16",
    )


@pytest.mark.parametrize(("kvs", "outcome"), [(("f16", "q8_0"), "ok"), (("f16", "f16"), "fail")])
def test_rows_with_what_was_reported_are_the_audits_witness(tmp_path: Path, kvs: tuple[str, str], outcome: str) -> None:
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    (tmp_path / "lab.toml").write_text("")
    cells = [{"phase": "prefill", "prompt": 512, "kv": kv} for kv in ("f16", "q8_0")]
    rule = Rule(metric="prefill_tok_s", cell=cells[1], against=cells[0], comparison=">=", threshold=0.9)
    plan = Plan(
        experiment="peers", belief="It costs little", knob="kv", cells=tuple(cells), rule=rule, repetitions=1,
        design="restarts",
    )  # fmt: skip
    run = Lab(tmp_path).run("peers", {})
    run.plan(plan)
    for cell, kv in zip(cells, kvs, strict=True):
        run.measure(cell, 0, start="process", prefill_tok_s=900.0)
        run.request(block=0, cell=cell, prompt_tokens=512, **{COLUMN: {**TOLD, "kv": kv}})
    (notice,) = [each for each in lever_witness(read_run(run.folder, tmp_path))]
    run.close()
    assert notice.outcome == outcome
