"""Levers: declared once, refused where they cannot act, and the witness a record holds of each."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import ParameterError
from labkit.lab.lab import Lab, StoredRun, _open_runs
from labkit.lab.lever_checks import cannot_act, check_plan, same_work, witness_of
from labkit.lab.levers import LEVERS, OWN_FILE, find_lever, known_levers, lever, workload
from labkit.lab.plan import Plan, Rule
from labkit.lab.sweep_effects import witnessed

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "FINDINGS.md").write_text("# Findings\n")
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    yield Lab(tmp_path)
    for run in _open_runs.values():
        run.close()
    _open_runs.clear()


def plan(knob: str | tuple[str, ...], cells: list[dict[str, Any]], control: tuple[int, int] | None = None) -> Plan:
    """A plan that compares the last cell with the first; `control` are the numbers of a negative control's cells."""
    same = None
    if control:
        same = Rule(
            metric="prefill_tok_s", cell=cells[control[0]], against=cells[control[1]], comparison="same", margin=0.1
        )
    return Plan(
        experiment="levers", belief="The last is faster than the first", knob=knob, cells=cells, repetitions=3,
        rule=Rule(metric="prefill_tok_s", cell=cells[-1], against=cells[0], comparison=">=", threshold=1.1),
        negative_control=same,
    )  # fmt: skip


def grid(**knobs: list[Any]) -> list[dict[str, Any]]:
    """Every combination, the last knob the fastest."""
    cells: list[dict[str, Any]] = [{}]
    for name, values in knobs.items():
        cells = [cell | {name: value} for cell in cells for value in values]
    return cells


def test_eleven_parts_at_512_tokens_the_micro_batch_was_off_and_is_refused_with_the_reason() -> None:
    cells = grid(ub=[512, 2048])
    with pytest.raises(ParameterError) as refused:
        check_plan(plan("ub", cells), {"prompt": 512})
    assert str(refused.value) == (
        "the plan is refused: ub cannot act at 512, 2048: a prompt of 512 tokens is read in one step of 512 rows. "
        "Compare where it acts, or make this its negative control"
    )
    check_plan(plan("ub", cells), {"prompt": 2048})
    check_plan(plan("ub", cells), {"prompts": [512, 2048]})  # a parameter's other name, and a list's largest
    check_plan(plan("ub", cells), {})  # nothing is known of the prompt, so nothing speaks against it


def test_a_negative_control_is_where_a_lever_may_be_out_of_reach() -> None:
    cells = grid(prompt=[512, 2048], ub=[512, 2048])
    check_plan(
        Plan(
            experiment="levers", belief="It acts on long prompts alone", knob=("ub", "prompt"), cells=cells, repetitions=3,
            rule=Rule(metric="prefill_tok_s", cell=cells[3], against=cells[2], comparison=">=", threshold=1.1),
            negative_control=Rule(metric="prefill_tok_s", cell=cells[1], against=cells[0], comparison="same", margin=0.1),
        ),
        {"prompts": [512, 2048]},
    )  # fmt: skip
    with pytest.raises(ParameterError, match=r"ub cannot act at 512, 2048.*\(at prompt=512\)\. Leave these cells out"):
        check_plan(plan(("ub", "prompt"), cells), {})


def test_a_parameter_that_takes_a_list_is_named_by_what_is_in_it() -> None:
    assert cannot_act("ubs", [[32], [64]], {"prompt": 16}).startswith("ubs cannot act at 32, 64: a prompt of 16")


def test_sixteen_streams_over_one_slot_queue_and_more_slots_than_streams_stay_empty() -> None:
    assert cannot_act("width", [4, 16], {"slots": 1}) == (
        "width cannot act at 4, 16: with 1 slots, 1 streams run and the rest wait"
    )
    assert cannot_act("width", [1, 16], {"slots": 8}) == ""
    assert cannot_act("slots", [32, 64], workload({"streams": [1, 8]})).endswith("the other slots stay empty")
    assert cannot_act("slots", [4, 64], {"width": 8}) == ""
    assert same_work("slots", [4, 8, 16, 64], {"width": 8}) == [(8, 16, 64)]


@pytest.mark.parametrize(
    ("name", "values", "at", "says"),
    [
        ("kv", ["f16", "f32"], {"prompt": 1, "tokens": 1}, "attends to itself alone"),
        ("kv", ["f16", "f32"], {"matrices": ["down"]}, "a matrix product reads no cache"),
        ("kv", ["f16", "f32"], {"prompt": 64, "tokens": 1}, ""),
        ("kv", ["f16", "f32"], {}, ""),
        ("ub", [256, 512], {"phase": "decode"}, "decoding reads no prompt"),
        ("width", [1, 8], {"phase": "prefill"}, "a prompt is read alone"),
        ("context", [1024, 4096], {"phase": "decode", "depth": 512, "tokens": 128}, "the 640 positions in use"),
        ("context", [1024, 4096], {"phase": "prefill", "depth": 512, "tokens": 128}, ""),
        ("ub", [256, 512], {"prompt": 300}, ""),
        ("ub", [0, 512], {"prompt": 300}, ""),
        ("ub", [[512], [2048]], {"prompt": 300}, "in one step of 300 rows"),  # a parameter that takes a list
        ("seed", [1, 2], {}, ""),
        ("ub", [512], {"prompt": 300}, ""),
        ("ub", [512, 512], {"prompt": 300}, ""),
    ],
)
def test_where_a_lever_acts_follows_from_the_workload(
    name: str, values: list[Any], at: dict[str, Any], says: str
) -> None:
    reason = cannot_act(name, values, at)
    assert says in reason
    assert bool(reason) == bool(says)


def test_a_lever_nobody_declared_is_refused_by_run_plan_and_nothing_is_stored(lab: Lab) -> None:
    cells = grid(flux=[1, 2])
    run = lab.run("levers")
    with pytest.raises(
        ParameterError, match=r"flux is not a declared lever \(there are: ub, width, slots.*levers.toml"
    ):
        run.plan(plan("flux", cells))
    assert run.record.plan_hash is None
    with pytest.raises(ParameterError, match="repetitions says what is asked or how often, and is no lever"):
        run.plan(plan("repetitions", grid(repetitions=[1, 2])))
    run.plan(plan(("flux", "width"), grid(flux=[1], width=[1, 2])))  # named but not varied
    assert run.record.plan_hash is not None


def test_an_undeclared_knob_may_be_varied_as_a_negative_control() -> None:
    cells = [{"flux": 1, "width": 1}, {"flux": 2, "width": 1}, {"flux": 1, "width": 8}]
    check_plan(plan(("flux", "width"), cells, control=(1, 0)), {})
    with pytest.raises(ParameterError, match="flux is not a declared lever"):
        check_plan(plan(("flux", "width"), cells), {})


def test_a_list_that_makes_the_notebooks_own_cells_acts_where_its_items_do() -> None:
    lists = [[256, 2048], [512, 2048]]
    assert cannot_act("ubs", lists, {"prompt": [128, 256]}) == (
        "ubs cannot act at [256, 2048], [512, 2048]: a prompt of 256 tokens is read in one step of 256 rows"
    )
    assert cannot_act("ubs", [[256], [512, 2048]], {"prompt": [128, 256]}) != ""
    assert cannot_act("ubs", lists, {"prompt": [128, 512]}) == ""
    assert cannot_act("ubs", [[512, 1024], [512, 2048]], {"prompt": [600]}) != ""
    assert cannot_act("widths", [[1, 2], [1, 4]], {}) == ""
    assert cannot_act("widths", [[1], [1, 1]], {}) == ""  # nothing holds either back


def test_a_name_in_capitals_is_a_specialisation_constant() -> None:
    check_plan(plan("UNROLL", grid(UNROLL=[1, 4])), {})
    assert find_lever("UNROLL") is LEVERS["constant"]
    assert find_lever("Unroll") is None


OWN = '[flux]\nabout = "what flows"\nvalues = "numbers"\nacts = "data"\nwitness = "counter"\nread = "the metric"\n'


def test_a_lab_declares_levers_of_its_own_in_a_file(lab: Lab) -> None:
    path = lab.root / OWN_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(OWN)
    lab.run("levers").plan(plan("flux", grid(flux=[1, 2])))
    found = known_levers(lab.root)["flux"]
    assert (found.acts, found.witness.kind, found.witness.name, found.cheap) == ("data", "counter", "flux", True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[flux", "cannot be read"),
        ('[flux]\nabout = "x"', r"\[flux\] needs about, values, acts, witness, read"),
        (OWN.replace("counter", "hope"), "witness is 'hope', not one of fingerprint, counter"),
        (OWN + 'more = "1"\n', "has 'more', which is not a part of a lever"),
        (OWN.replace("flux", "ub"), "is declared by labkit already"),
        ("flux = 3", "needs about"),
    ],
)
def test_a_fault_in_that_file_is_one_line_with_its_place(lab: Lab, text: str, says: str) -> None:
    path = lab.root / OWN_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(ParameterError, match=says) as refused:
        known_levers(lab.root)
    assert str(path) in str(refused.value)


def test_a_lever_is_declared_once() -> None:
    with pytest.raises(ParameterError, match="'ub' is declared twice"):
        lever("ub", values="", acts="data", witness=("counter", "x", ""))(lambda value, at: (value, ""))


def test_every_lever_says_what_it_is_and_what_would_show_that_it_moved() -> None:
    for found in LEVERS.values():
        assert found.about
        assert found.values
        assert found.witness.read
        assert found.comes_to(found.values, {})[0] == found.values


def test_every_knob_of_the_lab_s_notebooks_is_declared() -> None:
    knobs = []
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        for cell in json.loads(notebook.read_text())["cells"]:
            for given in re.findall(r"\n    knob=(.*),\n", "".join(cell["source"])):
                knobs += re.findall(r'"(\w+)"', given)
    assert {"width", "ub", "prompt", "rows", "quant", "kernel"} <= set(knobs)
    assert [knob for knob in knobs if find_lever(knob) is None] == []


def test_the_witness_of_a_lever_is_read_from_the_record(lab: Lab) -> None:
    run = lab.run("levers", {"ub": 512})
    run.describe(model={"name": "m", "sha256": "ab"}, programs={"1": "f1"})
    for block, (cell, steps, tokens) in enumerate([({"ub": 512}, 4, 2048), ({"ub": 2048}, 1, 2048)]):
        run.measure(cell, block, prefill_tok_s=10.0, submits=steps)
        run.request(block=block, cell=cell, slot=block, prompt_tokens=tokens)
    (run.folder / "requests.jsonl").open("a").write("torn")
    record, folder = run.record, run.folder
    assert witness_of("ub", record, folder) == {'{"ub":2048}': [1.0], '{"ub":512}': [4.0]}
    assert witness_of("prompt", record, folder) == {'{"ub":2048}': [2048], '{"ub":512}': [2048]}
    assert witness_of("arithmetic", record, folder) == {"1": "f1"}
    assert witness_of("model", record, folder) == {"name": "m", "sha256": "ab"}
    assert witness_of("device", record, folder) is None
    assert witness_of("rows", record, folder) == ['{"ub":2048}', '{"ub":512}']
    assert witness_of("temperature", record, folder) is None
    assert witness_of("flux", record, folder) is None


def test_a_witness_told_by_cell_is_held_at_the_cells_compared(lab: Lab) -> None:
    """The run measured one and eight streams, and is like itself as a whole; the two cells are not."""
    run = lab.run("levers", {"widths": [1, 8]})
    for streams in (1, 8):
        run.measure({"width": streams}, 0, decode_tok_s=10.0 * streams)
        for slot in range(streams):
            run.request(block=0, cell={"width": streams}, slot=slot)
    stored, one, eight = StoredRun(run.record, run.folder), '{"width":1}', '{"width":8}'
    assert witnessed("widths", (stored, one), (stored, eight), LEVERS) == "moved"
    assert witnessed("widths", (stored, eight), (stored, eight), LEVERS) == "did not move"
    assert witnessed("temperature", (stored, one), (stored, eight), LEVERS) == "not recorded"
