"""Above the roofline: the published batch figure is impossible, a plausible one stands, one without conditions is open."""

from pathlib import Path
from typing import Any

import pytest
from make_evidence import MISTRAL_7B, QWEN_27B, claimed, claims_of, measured, notices, observed

from labkit.audit.evidence import Observation

ID = "above-roofline"


@pytest.mark.quick
def test_the_batch_figure_of_1724_tok_s_needs_767_gb_s_of_a_640_gb_s_card():
    row = observed("decode_tok_s", 1724, "AMA b=32", streams=32, slots=32, **MISTRAL_7B)
    (notice,) = notices(ID, claims_of(row))
    assert pytest.approx(767, abs=1) == 1724 / 32 * 7.117e9 * 2 / 1e9
    assert notice.outcome == "fail"
    assert "766.9 GB/s" in notice.text
    assert any("53.88 passes/s" in line for line in notice.arithmetic)
    assert any("640 GB/s" in line and "120% of it" in line for line in notice.arithmetic)


@pytest.mark.quick
@pytest.mark.parametrize(("streams", "value", "gb_s"), [(1, 17, 242), (4, 60, 213), (8, 208, 370), (16, 619, 551)])
def test_the_lower_rungs_of_the_same_ladder_are_possible_by_themselves(streams: int, value: float, gb_s: float):
    (notice,) = notices(ID, claims_of(observed("decode_tok_s", value, streams=streams, **MISTRAL_7B)))
    assert value / streams * 7.117e9 * 2 / 1e9 == pytest.approx(gb_s, rel=0.01)
    assert notice.outcome == "ok"


@pytest.mark.parametrize("unknown", ["streams", "tokens_per_pass_max", "active_params", "bytes_per_weight"])
def test_a_rate_without_one_of_its_conditions_is_not_assessable_and_names_it(unknown: str):
    fields = {"streams": 32.0, "tokens_per_pass_max": 1.0, **MISTRAL_7B, "quantisation": None, unknown: None}
    (notice,) = notices(ID, claims_of(observed("decode_tok_s", 600, **fields)))
    assert notice.outcome == "not assessable"
    assert len(notice.missing) == 1


def test_speculation_counts_the_tokens_of_a_pass():
    # 27B of 16.5 GB, 88 tok/s with three drafts: 88 / 4 x 16.5 GB = 363 GB/s, where one token a pass would be 1,452.
    fields = {"active_params": 24.7e9, "bytes_per_weight": 16.5 / 24.7, "streams": 1.0}
    row = observed("decode_tok_s", 88, **fields | {"tokens_per_pass_max": 4.0})
    assert [n.outcome for n in notices(ID, claims_of(row))] == ["ok"]
    row = observed("decode_tok_s", 88, **fields | {"tokens_per_pass_max": 1.0})
    assert [n.outcome for n in notices(ID, claims_of(row))] == ["fail"]


def test_of_a_mixture_of_experts_only_the_active_ones_are_read():
    # Qwen3-30B-A3B of 4.64 bits: 167.6 tok/s x 3.3e9 x 0.58 bytes = 321 GB/s; all 30e9 would be 2,916.
    row = observed("decode_tok_s", 167.6, streams=1, active_params=3.3e9, bytes_per_weight=0.58)
    (notice,) = notices(ID, claims_of(row))
    assert notice.outcome == "ok"
    assert any("320.8 GB/s" in line for line in notice.arithmetic)


def test_a_prompt_read_faster_than_any_unit_multiplies_is_impossible_unless_declared_warm():
    # 9B: 16 GFLOP a token x 222,971 tok/s = 3.57 PFLOP/s, on a card of 389 TFLOP/s with 8-bit operands
    fields = {"device": "RX 9070 XT", "active_params": 8e9, "operand_bits": 8, "prompt_tokens": 48_400.0}
    (cold,) = notices(ID, claims_of(observed("prefill_tok_s", 222_971, **fields)))
    assert (cold.outcome, "3,568 TFLOP/s" in cold.text) == ("fail", True)
    (warm,) = notices(ID, claims_of(observed("prefill_tok_s", 58_350, **fields, cache="warm")))
    assert warm.outcome == "ok"


def test_the_marginal_rate_between_two_depths_gives_a_shared_prefix_away():
    # 32,167 tokens at 2,910 tok/s, then 60,329 at 4,760: the last 28,162 took 1.62 s = 17,400 tok/s = 817 TFLOP/s
    rows = [
        observed("prefill_tok_s", rate, f"{tokens} tokens", prompt_tokens=tokens, operand_bits=8, **QWEN_27B)
        for tokens, rate in ((32_167, 2_910), (60_329, 4_760))
    ]
    fails = [notice for notice in notices(ID, claims_of(*rows)) if notice.outcome == "fail"]
    assert len(fails) == 1
    assert fails[0].about == ("60329 tokens",)
    assert "28,162 tokens" in fails[0].text
    honest = [
        observed("prefill_tok_s", rate, f"{tokens} tokens", prompt_tokens=tokens, operand_bits=8, **QWEN_27B)
        for tokens, rate in ((32_167, 2_725), (60_329, 2_470))
    ]
    assert {notice.outcome for notice in notices(ID, claims_of(*honest))} == {"ok"}


def test_short_prompts_hide_behind_the_weights_and_noise_is_no_wonder():
    # 64 and 128 tokens both take as long as the weights do to read; 1,024 and 2,048 within a percent of each other do not
    short = [observed("ttft_s", 0.0301, f"{n}", prompt_tokens=n, operand_bits=8, **QWEN_27B) for n in (64, 128)]
    assert {notice.outcome for notice in notices(ID, claims_of(*short))} == {"ok"}
    long = [observed("ttft_s", 0.51, f"{n}", prompt_tokens=n, operand_bits=8, **QWEN_27B) for n in (1024, 2048)]
    found = [notice for notice in notices(ID, claims_of(*long)) if notice.outcome == "fail"]
    assert [notice.about for notice in found] == [("2048",)]


def test_a_depth_that_costs_no_time_was_not_there():
    # 64 KiB a position: 100,000 further positions of 8 streams are 52 GB, and take 82 ms at 640 GB/s
    def cell(depth: float, step_ms: float) -> dict[str, Any]:
        return {
            "depth": depth,
            "streams": 8.0,
            "phase": "decode",
            "pass_bytes": 14.8e9 + 8 * depth * 65_536,
            "step_ms": step_ms,
        }

    def rungs(*cells: dict[str, Any]) -> list[Observation]:
        return [
            observed("step_ms", one.pop("step_ms"), f"depth={one['depth']:g}", **one)
            for one in cells
        ]  # fmt: skip

    assert pytest.approx(0.082, abs=0.001) == 8 * 1e5 * 65_536 / 640e9
    honest = rungs(cell(1000, 30.0), cell(101_000, 130.0))
    assert {notice.outcome for notice in notices(ID, claims_of(*honest))} == {"ok"}
    wrong = [n for n in notices(ID, claims_of(*rungs(cell(1000, 30.0), cell(101_000, 90.0)))) if n.outcome == "fail"]
    assert any("further positions of depth=101000" in notice.text for notice in wrong)


def test_a_higher_memory_clock_raises_the_limit():
    # At 1,450 MHz this memory does 742 GB/s; 700 GB/s are then possible, and not at its own clock.
    fields = {"streams": 1.0, "active_params": 7e9, "bytes_per_weight": 2.0}
    assert notices(ID, claims_of(observed("decode_tok_s", 50, **fields)))[0].outcome == "fail"
    assert notices(ID, claims_of(observed("decode_tok_s", 50, **fields, memory_mhz=1450.0)))[0].outcome == "ok"


def test_what_fits_in_the_cache_is_not_held_against_the_memory():
    row = observed("decode_tok_s", 9000, streams=1, active_params=1e8, bytes_per_weight=1.0)
    (notice,) = notices(ID, claims_of(row))
    assert notice.outcome == "not assessable"
    assert "4 times the cache" in notice.missing[0]


def test_beyond_the_rate_measured_on_the_device_only_warns():
    cells = measured({1: {"step_ms": [20.0, 20.1, 19.9]}}, pass_bytes=10e9, measured_gb_s=450.0)
    (notice,) = notices(ID, claims_of(*cells))
    assert notice.outcome == "warn"
    assert "450 GB/s measured" in notice.text


def test_a_claimed_total_may_count_prompts_and_is_not_assessable_and_a_run_s_own_is(tmp_path: Path):
    # 3,000 tok/s of 2,064 tokens a request, of which 16 are output: 23 passes a second, 326 GB/s. As output it were 42,000.
    known = {"active_params": "7e9", "bytes_per_weight": 2, "streams": 1, "tokens_per_pass_max": 1}
    row = known | {"metric": "total_tok_s", "value": 3000, "prompt_tokens": 2048, "output_tokens": 16}
    (notice,) = notices(ID, claimed(tmp_path, [row]).evidence())
    assert notice.outcome == "not assessable"
    assert notice.missing == ("which tokens are counted (decode_tok_s counts output alone)",)
    fields = {"active_params": 7e9, "bytes_per_weight": 2.0, "streams": 1.0}
    (own,) = notices(ID, claims_of(observed("total_tok_s", 3000, **fields)))  # emitted tokens, as metrics.py defines it
    assert (own.outcome, "42,000 GB/s" in own.text) == ("fail", True)


@pytest.mark.parametrize(
    ("streams", "slots", "seconds", "gb_s"),
    [(1, None, 0.1, 14_000), (1, None, 5.0, 280), (32, 32, 5.0, 280), (32, 8, 5.0, 1120)],
)
def test_the_time_of_a_batch_is_a_rate_of_its_output_tokens(
    streams: float, slots: float | None, seconds: float, gb_s: float
):
    # 100 tokens a stream of 14 GB a pass; 32 streams in 8 slots take four times the passes
    fields = {"streams": streams, "slots": slots, "output_tokens": 100.0, "active_params": 7e9, "bytes_per_weight": 2.0}
    (notice,) = notices(ID, claims_of(observed("makespan_s", seconds, **fields)))
    assert pytest.approx(gb_s) == streams / min(streams, slots or streams) * 100 / seconds * 14
    assert f"implies {gb_s:,} GB/s" in notice.text or f"needs {gb_s:,} GB/s" in notice.text
    assert notice.outcome == ("fail" if gb_s > 640 else "ok")


@pytest.mark.parametrize(
    ("unknown", "lack"),
    [("streams", "the number of streams"), ("output_tokens", "the output tokens of a stream"),
     ("tokens_per_pass_max", "the most tokens a stream gets from one pass")],
)  # fmt: skip
def test_the_time_of_a_batch_without_its_tokens_is_not_assessable(unknown: str, lack: str):
    fields = {"streams": 1.0, "output_tokens": 100.0, "active_params": 7e9, "bytes_per_weight": 2.0, unknown: None}
    (notice,) = notices(ID, claims_of(observed("makespan_s", 0.1, **fields)))
    assert (notice.outcome, notice.missing) == ("not assessable", (lack,))


@pytest.mark.parametrize(
    ("params", "device", "outcome"),
    [(40e9, "R9700", "warn"), (17e9, "R9700", "ok"), (34e9, "2x R9700", "ok"), (36e9, "2x R9700", "warn")],
)
def test_active_weights_beyond_the_memory_do_not_fit(params: float, device: str, outcome: str):
    # 31.86 GiB are 34.21 GB: of 2 bytes, 17.1e9 weights fit one card and 34.2e9 two
    row = observed("decode_tok_s", 2, device=device, streams=1.0, active_params=params, bytes_per_weight=2.0)
    (notice,) = notices(ID, claims_of(row))
    assert notice.outcome == outcome
    if params == 40e9:
        assert "its active weights alone are 80 GB, on a device of 34.21 GB" in notice.text


def test_weights_that_do_not_fit_are_said_where_nothing_else_is_known_and_never_hide_what_is_impossible():
    fields = {"active_params": 40e9, "bytes_per_weight": 2.0}
    assert [n.outcome for n in notices(ID, claims_of(observed("decode_tok_s", 2, **fields)))] == ["warn"]
    assert [n.outcome for n in notices(ID, claims_of(observed("decode_tok_s", 20, streams=1.0, **fields)))] == ["fail"]


@pytest.mark.parametrize(
    ("written", "outcome", "least"),
    [
        ("47", "ok", "651 GB/s at the least, 101.7% of the limit, within the 102%"),
        ("47.00", "fail", "657.9 GB/s at the least, 102.8% of the limit"),
    ],
)
def test_the_rounding_that_saves_a_value_is_in_its_arithmetic(tmp_path: Path, written: str, outcome: str, least: str):
    # 47 passes of 14 GB are 658 GB/s, 103 % of 640; 47 may have been 46.5, which are 651, and 47.00 only 46.995
    known = {"active_params": "7e9", "bytes_per_weight": 2, "streams": 1, "tokens_per_pass_max": 1}
    (notice,) = notices(ID, claimed(tmp_path, [known | {"value": written}]).evidence())
    assert notice.outcome == outcome
    assert least in notice.arithmetic[-1]


def test_a_limit_is_said_once_and_the_product_of_several_cards_in_full():
    fields = {"streams": 1.0, "active_params": 7e9, "bytes_per_weight": 2.0}
    (one,) = notices(ID, claims_of(observed("decode_tok_s", 40, **fields)))
    assert one.arithmetic[-1] == "limit: 640 GB/s of AMD Radeon AI PRO R9700; implied is 88% of it"
    (rate,) = notices(ID, claims_of(observed("prefill_tok_s", 4000, operand_bits=16, prompt_tokens=512.0, **fields)))
    assert "191 TFLOP/s, fp16 matrix of AMD Radeon AI PRO R9700; implied is 29% of it" in rate.arithmetic[-1]
    (two,) = notices(ID, claims_of(observed("decode_tok_s", 40, device="2x R9700", **fields)))
    assert "2 × 640 GB/s of AMD Radeon AI PRO R9700 = 1,280 GB/s" in two.arithmetic[-1]


def test_an_unknown_device_is_named_and_nothing_is_guessed():
    (notice,) = notices(ID, claims_of(observed("decode_tok_s", 1724, device="Arc B580", streams=32, **MISTRAL_7B)))
    assert notice.outcome == "not assessable"
    assert "Arc B580" in notice.missing[0]
