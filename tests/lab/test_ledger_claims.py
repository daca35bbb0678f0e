"""Numbers in claims: what the data bear out passes at the digits written, what they do not is withheld and named."""

from pathlib import Path

import pytest
from ledger_runs import EIGHT, ONE, make_lab, make_plan, make_run

from labkit.lab.claims import cell_numbers, known_numbers, unsupported
from labkit.lab.ledger import append
from labkit.lab.measurements import Measurement
from labkit.lab.recheck import verify
from labkit.lab.record import canonical_cell
from labkit.lab.verdict import judge

pytestmark = pytest.mark.quick

ROWS = [
    Measurement(block, block, canonical_cell(cell), metric, value, "")
    for block in range(10)
    for cell, speed, step in ((ONE, 24.1, 41.5), (EIGHT, 140.4, 57.0))
    for metric, value in (
        ("decode_tok_s", speed + 0.01 * block),
        ("step_ms", step),
        ("share_of_read_bandwidth", 0.25 if cell == EIGHT else 0.31),
    )
]
PLAN = make_plan()
KNOWN = known_numbers(cell_numbers("run", ROWS), judge(PLAN, ROWS), PLAN, {"tokens": 24, "burst_s": 0.3, "width": 8})


@pytest.mark.parametrize(
    "text",
    [
        "Eight streams decode 5.82 times the tokens of one.",
        "Eight streams decode 5.8× the tokens of one, 140 tok/s against 24.1 tok/s.",
        "A step takes 57.0 ms instead of 41.5 ms, 37 % more.",
        "A step takes 0.057 s.",
        "It reaches 25 % of the read bandwidth, down from 31 %.",
        "At least 5 times, over 5.5× and under 6× the tokens of one.",
        "The threshold was 4 times with a margin of 2 %; bursts of 0.3 s, 24 tokens each.",
        "SmolLM2-135M in Q4_1 on Mesa 25.0.7 with Vulkan 1.4 and 32 slots.",
        "Nothing here is a number.",
        "One stream runs at 0.17x of eight.",
    ],
)
def test_what_the_data_say_can_be_claimed(text: str) -> None:
    assert unsupported(text, KNOWN) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "Eight streams decode 5.9 times the tokens of one.",
            "5.9 times is not in the data of the run; nearest is 5.82",
        ),
        ("Eight streams decode 8 times that.", "8 times is not in the data of the run"),
        ("It decodes 1,400 tok/s.", "1,400 tok/s is not in the data of the run; nearest is 140.4"),
        ("It decodes 24.2 tokens a second.", "24.2 tokens a second"),
        ("A step takes 58.0 ms.", "58.0 ms"),
        ("It is 40 % slower.", "40 %"),
        ("At least 5.9 times the tokens of one.", "5.9 times"),
        ("It reads 120 GB/s.", "120 GB/s is not in the data of the run"),
    ],
)
def test_what_the_data_do_not_say_is_named_with_the_nearest_they_do(text: str, named: str) -> None:
    [fault] = unsupported(text, KNOWN)
    assert named in fault


def test_a_claim_whose_number_disagrees_with_the_data_never_gets_in(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    claims = [
        "Eight streams decode 5.00 times the tokens of one.",
        "Eight streams decode 8.00 times the tokens of one.",
    ]
    append(lab, make_run(lab, 5.0, claims=claims))
    text = (lab / "FINDINGS.md").read_text()
    can, withheld = text.index("**Can be claimed**"), text.index("**Withheld, as the data do not bear it out**")
    assert can < text.index(claims[0]) < withheld < text.index(claims[1])
    assert "(8.00 times is not in the data of the run; nearest is 5.05)" in text


def test_a_claim_that_a_changed_record_no_longer_bears_out_is_named_by_verify(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "lab")
    claim = "Eight streams decode 5.00 times the tokens of one."
    folder = make_run(lab, 5.0, claims=[claim])
    append(lab, folder)
    text = (folder / "conclusion.json").read_text()
    (folder / "conclusion.json").write_text(text.replace("5.00 times", "7.00 times"))
    assert any("7.00 times is not in the data of the run" in fault.text for fault in verify(lab).faults)
