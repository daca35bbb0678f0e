"""Power against bandwidth: 82 W at 100 % utilisation, a meter on the other card, and cards that draw what work takes."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import MISTRAL_7B, claims_of, notices, observed
from make_run import R9700, run_of

ID = "power-against-bandwidth"


@pytest.mark.quick
def test_82_watts_do_not_read_at_the_memorys_full_rate():
    # AMA: 1,724 tok/s at 32 streams are 767 GB/s, 120 % of the card's, at 27 % of its power
    (notice,) = notices(ID, claims_of(observed("decode_tok_s", 1724, streams=32.0, power_w=82.0, **MISTRAL_7B)))
    assert notice.outcome == "warn"
    assert pytest.approx(0.228, abs=0.001) == (82 / 300) / (1724 / 32 * 2 * 7.117 / 640)
    assert notice.arithmetic[-1] == "27% / 120% = 0.23, of 0.5 at the least"


def test_read_as_the_whole_batchs_rate_54_tok_s_would_fit_them():
    # 54 tok/s of all 32 streams are 1.7 steps a second, 24 GB/s
    (notice,) = notices(ID, claims_of(observed("decode_tok_s", 54, streams=32.0, power_w=82.0, **MISTRAL_7B)))
    assert notice.outcome == "ok"


def test_a_card_that_draws_its_power_is_fine_at_any_bandwidth():
    # DIS: 50.9 tok/s at 216 W; NIK: 34.6 tok/s, 80 % of the memory's rate, under a cap of 250 W that it draws
    moe = {"bytes_per_weight": 0.62, "active_params": 3.3e9, "streams": 1.0}
    dense = {"bytes_per_weight": 0.60, "active_params": 24.7e9, "streams": 1.0, "power_cap_w": 250.0}
    rows = [
        observed("decode_tok_s", 50.9, power_w=216.0, **moe),
        observed("decode_tok_s", 34.6, power_w=248.0, **dense),
    ]
    assert [notice.outcome for notice in notices(ID, claims_of(*rows))] == ["ok", "ok"]


def test_the_power_may_stand_in_a_row_of_its_own():
    rate = observed("decode_tok_s", 1724, "rate", streams=32.0, **MISTRAL_7B)
    power = observed("power_w", 82.0, "power", streams=32.0, **MISTRAL_7B)
    assert [(n.subject, n.outcome) for n in notices(ID, claims_of(rate, power))] == [("rate", "warn")]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    ("power", "cap", "share"), [(900.0, None, "300%"), (250.0, 100.0, "250%"), (310.0, None, ""), (420.0, 330.0, "")]
)
def test_more_power_than_the_card_or_its_cap_lets_through_warns(
    power: float, cap: float | None, share: str, alone: bool
):
    # the R9700 draws 300 W; a cap that was raised or lowered counts in the place of it
    fields = {"streams": 1.0, "power_cap_w": cap, "power_w": power, **MISTRAL_7B}
    row = observed("power_w", power, **fields) if alone else observed("decode_tok_s", 17, **fields)
    troubles = [notice for notice in notices(ID, claims_of(row)) if notice.trouble]
    assert [notice.outcome for notice in troubles] == (["warn"] if share else [])
    assert all(f"= {share}, of 130% at the most" in notice.arithmetic[0] for notice in troubles)


def test_too_much_power_in_a_row_of_its_own_is_not_fine_beside_the_rate_either():
    rate = observed("decode_tok_s", 17, "rate", streams=1.0, **MISTRAL_7B)
    power = observed("power_w", 900.0, "power", streams=1.0, power_w=900.0, **MISTRAL_7B)
    assert {n.subject: n.outcome for n in notices(ID, claims_of(rate, power))} == {"rate": "warn", "power": "warn"}


def test_a_peak_may_be_beyond_a_cap_and_two_cards_draw_twice():
    peak = observed("power_w", 488.0, power_w=488.0, power_cap_w=250.0, text="for under a millisecond")
    assert [notice.outcome for notice in notices(ID, claims_of(peak))] == ["not assessable"]
    pair = observed("power_w", 560.0, device="2x R9700", power_w=560.0)
    assert not notices(ID, claims_of(pair))


def read_while_it_ran(root: Path, under_load: float, busy: float = 1.0, **card: Any) -> Any:
    """The notice on the telemetry of a run that worked from 10 to 20 s; the card that was read idles at 19 W."""
    readings = [
        {
            "time_s": at,
            "power_w": under_load if 10 <= at <= 20 else 19.0,
            "utilisation": busy if 10 <= at <= 20 else 0.0,
        }
        for at in range(30)
    ]
    request = {"start_s": 10.0, "last_token_s": 20.0}
    cell = ({"phase": "prefill", "streams": 1}, {"prefill_tok_s": [900.0]}, [request])
    device = R9700 | {"card": {"power_limit_w": 300.0, "memory_max_mhz": 1258.0}}
    (notice,) = notices(ID, run_of(root, [cell], telemetry=[one | card for one in readings], device=device))
    return notice


def test_idle_watts_under_load_are_another_cards(tmp_path: Path):
    # NIK: for two runs the power was read from the other card
    notice = read_while_it_ran(tmp_path, 20.0)
    assert notice.outcome == "warn"
    assert notice.arithmetic == ("under load 20 W, at rest 19 W: 1.05 times, of 1.15 at the least",)


def test_a_card_that_is_never_busy_did_not_do_the_work(tmp_path: Path):
    notice = read_while_it_ran(tmp_path, 60.0, busy=0.0)
    assert notice.outcome == "warn"
    assert "utilisation 0 % in each of 11 readings under load" in notice.arithmetic


def test_a_faster_memory_or_more_power_than_the_device_has_is_another_cards(tmp_path: Path):
    assert (
        "memory at 3,201 MHz, of 1,258 at the most"
        in read_while_it_ran(tmp_path / "a", 280.0, memory_mhz=3201).arithmetic
    )
    assert read_while_it_ran(tmp_path / "b", 650.0).outcome == "warn"


def test_the_card_that_worked_is_fine(tmp_path: Path):
    assert read_while_it_ran(tmp_path, 283.0, memory_mhz=1258).outcome == "ok"


def test_without_readings_under_load_nothing_is_said(tmp_path: Path):
    cell = ({"phase": "prefill", "streams": 1}, {"prefill_tok_s": [900.0]}, [])
    assert [n.outcome for n in notices(ID, run_of(tmp_path, [cell]))] == ["not assessable"]
