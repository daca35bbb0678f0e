"""What an entry may claim and may not, from what its run varied, held and reached: not only from what it said of itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from ledger_runs import DEVICE, make_lab, make_plan, make_run

from labkit.errors import LabError
from labkit.lab.conditions import driver_words, shape_words, varied, weights_words
from labkit.lab.coverage import Coverage, parse_shape, requested_coverage
from labkit.lab.entries import read_book
from labkit.lab.events import CoverageEvent, EntryEvent, events_folder, read_events, write_event
from labkit.lab.events import shape_words as plain_words
from labkit.lab.ledger import append, render
from labkit.lab.recheck import verify

MODEL = {"name": "SmolLM2-135M", "sha256": "ab" * 32, "bytes_by_type": {"Q4_1": 690, "Q8_0": 308, "F32": 2}}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return make_lab(tmp_path / "lab")


def with_requests(folder: Path, *requests: tuple[int, int, str]) -> Path:
    rows = [{"prompt_tokens": read, "completion_tokens": out, "prompt_sha256": sha} for read, out, sha in requests]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def section(lab: Path, title: str, name: str = "FINDINGS.md") -> str:
    """The list under a title, in the only entry."""
    return (lab / name).read_text().partition(f"**{title}**\n\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize(
    "shape",
    [
        {"kv": "f16", "tokens": 24},
        {"prompts": ["a, b=2", 'c "d"', "é"], "z": [1, [2, {"x": "y=1"}]], "n": None, "t": True, "f": 1.5},
        {"a": "x, y", "b": "", "c": "12abc", "d": "[not json"},
        {},
    ],
)
def test_settings_written_as_words_are_read_back(shape: dict[str, Any]) -> None:
    assert parse_shape(plain_words(shape)) == shape


def test_requests_tell_the_lengths_depths_and_contents_that_were_reached() -> None:
    rows = [
        {"prompt_tokens": 4, "completion_tokens": 67, "prompt_sha256": "a"},
        {"prompt_tokens": 9, "completion_tokens": 64, "prompt_sha256": "b"},
        {"prompt_tokens": 9, "prompt_sha256": "b"},
    ]
    assert requested_coverage(rows) == Coverage(prompt_tokens=(4, 9), output_tokens=(64, 67), depth=(4, 73), contents=2)


def test_a_parameter_named_as_the_knob_is_varied_and_not_held(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, parameters={"kv": "f16", "width": 8}))
    text = (lab / "FINDINGS.md").read_text()
    assert "- **Varied**: width 1 and 8\n" in text
    assert "- **Held fixed**: kv=f16\n" in text
    assert "width=8" not in section(lab, "Should not be claimed")
    assert "width=8; " not in section(lab, "Can be claimed")


def test_an_entry_says_what_it_reached_and_what_lies_beyond(lab: Path) -> None:
    folder = with_requests(make_run(lab, 5.0, model=MODEL), (4, 67, "a"), (9, 64, "b"))
    append(lab, folder)
    text = (lab / "FINDINGS.md").read_text()
    assert "- **Varied**: width 1 and 8\n" in text
    assert "- **Held fixed**: kv=f16, tokens=24\n" in text
    assert (
        "- **Reached**: prompts of 4 to 9 tokens; 64 to 67 tokens out; depths to 73 tokens; 2 different prompts\n"
        in text
    )
    assert "weights 69 % Q4_1, 31 % Q8_0 by bytes" in text
    assert "depths to 73 tokens; 2 different prompts; kv=f16, tokens=24." in section(lab, "Can be claimed")
    beyond = section(lab, "Should not be claimed")
    for words in (
        "other cards than A card, or other drivers or builds: one of each was measured",
        "quantisations other than its own (F32, Q4_1, Q8_0)",
        "Other numbers of streams than 1 and 8.",
        "Contexts deeper than 73 tokens.",
        "Prompts of other lengths than 4 to 9 tokens.",
        "Outputs longer than 67 tokens.",
        "Contents unlike the 2 prompts measured",
        "Other settings than kv=f16.",
        "1 session so far",
    ):
        assert words in beyond, words


def test_one_prompt_for_all_streams_is_said(lab: Path) -> None:
    append(lab, with_requests(make_run(lab, 5.0), (71, 800, "a"), (71, 800, "a")))
    assert "Contents unlike the one prompt that all had" in section(lab, "Should not be claimed")
    assert "the same prompt for all" in section(lab, "Can be claimed")


def test_what_a_run_does_not_describe_is_not_to_be_claimed_of(lab: Path) -> None:
    append(lab, make_run(lab, 5.0))
    beyond = section(lab, "Should not be claimed")
    assert "Any depths, prompt lengths or contents: the run does not describe its own." in beyond
    assert "streams" not in next(line for line in beyond.splitlines() if "does not describe" in line)


def test_a_knob_that_is_no_number_of_streams_is_bounded_by_its_values(lab: Path) -> None:
    cells = [{"kv": "f16"}, {"kv": "q8_0"}]
    plan = make_plan(knob="kv", cells=cells, control=cells[0], rule={"cell": cells[1], "against": cells[0]})
    samples = [(block, cell, value) for block in range(10) for cell, value in zip(cells, (20.0, 100.0), strict=True)]
    append(lab, make_run(lab, plan=plan, samples=samples))
    assert "Other values of kv than f16 and q8_0." in section(lab, "Should not be claimed")


def test_sessions_of_one_scope_reach_as_far_as_they_did_together(lab: Path) -> None:
    append(lab, with_requests(make_run(lab, 5.0, number=1), (4, 60, "a")))
    append(lab, with_requests(make_run(lab, 5.0, number=2), (9, 60, "b")))
    assert (
        "**Reached**: prompts of 4 to 9 tokens; 60 tokens out; depths to 69 tokens" in (lab / "FINDINGS.md").read_text()
    )


def test_another_card_that_was_measured_is_pointed_to(lab: Path) -> None:
    append(lab, make_run(lab, 5.0, number=1))
    append(lab, make_run(lab, 5.0, number=2, device=DEVICE | {"name": "B card", "uuid": "22" * 16}))
    assert "beyond what the entries linked above found there" in section(lab, "Should not be claimed")


def test_an_entry_of_a_version_that_kept_no_coverage_gets_it_from_its_run_once(lab: Path) -> None:
    folder = with_requests(make_run(lab, 5.0), (4, 67, "a"))
    [path] = append(lab, folder)
    [event] = read_events(lab).of(EntryEvent)
    path.unlink()
    write_event(lab, event.model_copy(update={"coverage": None}))
    render(lab)
    [kept] = read_events(lab).of(CoverageEvent)
    assert kept.coverage == event.coverage
    assert "prompts of 4 tokens; 67 tokens out" in (lab / "FINDINGS.md").read_text()
    render(lab)
    assert len(list(events_folder(lab).glob("*.json"))) == 2
    assert verify(lab).faults == ()
    with_requests(folder, (400, 67, "a"))
    assert any("what it covered" in str(fault) for fault in verify(lab).faults)


def test_without_its_run_such_an_entry_says_what_its_plan_says(lab: Path) -> None:
    folder = make_run(lab, 5.0)
    [path] = append(lab, folder)
    [event] = read_events(lab).of(EntryEvent)
    path.unlink()
    write_event(lab, event.model_copy(update={"coverage": None}))
    folder.rename(lab / "elsewhere")
    render(lab)
    [entry] = read_book(read_events(lab)).entries
    assert entry.coverage == Coverage(streams=(1, 8), output_tokens=(24, 24))


def test_requests_that_are_none_are_named_by_their_line(lab: Path) -> None:
    folder = make_run(lab, 5.0)
    (folder / "requests.jsonl").write_text('{"prompt_tokens": 4}\nnot json\n')
    with pytest.raises(LabError, match=r"requests\.jsonl, line 2, is not "):
        append(lab, folder)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("NVIDIA 580.159.04 2435301632 Vulkan 1.4.312", "NVIDIA 580.159.04 Vulkan 1.4.312"),
        ("llvmpipe Mesa 25.0.7 (LLVM 15.0.6) 1 Vulkan 1.4.305", "llvmpipe Mesa 25.0.7 (LLVM 15.0.6) Vulkan 1.4.305"),
        ("radv Mesa 26 Vulkan 1.4.305", "radv Mesa 26 Vulkan 1.4.305"),
        ("not described", "not described"),
    ],
)
def test_a_packed_driver_version_is_not_shown(stored: str, shown: str) -> None:
    assert driver_words(stored) == shown


def test_long_lists_are_counted_and_short_ones_shown() -> None:
    texts = ["The sea", "A recipe", "In 1969", "Dear", "def f", "My cat", "Rain", "Once"]
    assert shape_words({"prompts": texts, "kv": "f16"}) == 'kv=f16, prompts=8 texts ("The sea", "A recipe", …)'
    assert shape_words({"ubs": [16, 32]}) == "ubs=[16, 32]"
    assert varied(make_plan()) == ["width 1 and 8"]
    assert weights_words(Coverage()) == ""
