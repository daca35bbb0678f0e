"""Admission waves: why a drafter looked 2.2 times slower at 60 streams, and what one batch looks like instead."""

import pytest
from make_evidence import claims_of, notices, observed

from labkit.audit.evidence import Evidence, Observation, Request

ID = "admission-waves"


def sixty(draft: str, slowest: float, fastest: float) -> list[Observation]:
    """The slowest and the fastest of 60 streams of the 9B, as published."""
    known = {"streams": 60.0, "settings": {"draft": draft}, "group": draft, "source": "NIK-D14"}
    return [
        observed("stream_min_tok_s", slowest, f"{draft} slowest", **known),
        observed("stream_max_tok_s", fastest, f"{draft} fastest", **known),
    ]


@pytest.mark.quick
def test_streams_from_14_to_76_tok_s_are_eleven_residents_in_waves():
    (notice,) = notices(ID, claims_of(*sixty("mtp", 14, 76)))
    assert notice.outcome == "warn"
    assert pytest.approx(11.05, abs=0.01) == 60 / (76 / 14)
    assert "about 11 are resident" in notice.text


def test_streams_that_are_all_as_fast_are_one_batch():
    assert [notice.outcome for notice in notices(ID, claims_of(*sixty("none", 32, 32)))] == ["ok"]


def test_comparing_both_compares_residents_and_not_the_drafter():
    found = notices(ID, claims_of(*sixty("mtp", 14, 76), *sixty("none", 32, 32)))
    compared = [notice for notice in found if "whatever else was changed" in notice.text]
    assert compared
    assert {subject for notice in compared for subject in notice.about} == {"mtp slowest", "mtp fastest"}
    assert "none fastest" in compared[-1].text


@pytest.mark.parametrize(("streams", "outcomes"), [(4.0, []), (8.0, ["warn"]), (16.0, ["warn"])])
def test_more_streams_than_slots_wait(streams: float, outcomes: list[str]):
    # NIK's production server: 94.8, 88.8, 91.6 tok/s at 4, 8 and 16 streams, with 4 slots
    row = observed("decode_tok_s", 91.6, streams=streams, slots=4.0)
    assert [notice.outcome for notice in notices(ID, claims_of(row))] == outcomes


def with_requests(slots: int, offered: int = 24) -> Evidence:
    """A cell of a run whose requests get one of `slots` slots in turn, ten seconds each."""
    rows = tuple(
        Request("width=24", 0, {"submit_s": 0.0, "start_s": 10.0 * (i // slots), "last_token_s": 10.0 * (i // slots) + 10})
        for i in range(offered)
    )  # fmt: skip
    cell = observed("decode_tok_s", 211.6, "width=24", streams=float(offered), requests=rows)
    return Evidence("run", "a run", (cell,), requests=rows)


def test_requests_say_how_many_held_a_slot_at_once():
    # 27B at 250 W: 23 of 24 streams are resident, one runs alone afterwards, and the wall is 52.2 + 38.5 s
    (notice,) = notices(ID, with_requests(23))
    assert notice.outcome == "warn"
    assert "23 of 24 streams" in notice.text
    assert [notice.outcome for notice in notices(ID, with_requests(24))] == ["ok"]


def test_a_cell_is_warned_of_once_by_what_is_surest():
    rows = with_requests(12).requests
    cell = observed(
        "decode_tok_s", 100.0, "width=24", streams=24.0, slots=12.0, requests=rows,
        metrics={"decode_tok_s": 100.0, "stream_min_tok_s": 5.0, "stream_max_tok_s": 11.0},
    )  # fmt: skip
    (notice,) = notices(ID, Evidence("run", "a run", (cell,), requests=rows))
    assert notice.outcome == "warn"
    assert "12 of 24 streams were resident at once" in notice.text
