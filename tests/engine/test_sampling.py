"""Sampling settings: what is accepted, how a refusal reads, and the words the kernels get."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from labkit.engine.sampling import MAX_BIAS, Sampling, pack, pack_bias
from labkit.errors import ParameterError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", float("nan"), "0.01 to 100"),
        ("temperature", -0.1, "0.01 to 100"),
        ("temperature", 0.001, "0.01 to 100"),
        ("temperature", float("inf"), "0.01 to 100"),
        ("temperature", "hot", "0.01 to 100"),
        ("temperature", True, "0.01 to 100"),
        ("temperature", None, "0.01 to 100"),
        ("top_k", -2, "from 1"),
        ("top_k", 2.5, "from 1"),
        ("top_k", True, "from 1"),
        ("top_p", 0.0, "above 0"),
        ("top_p", 1.01, "at most 1"),
        ("top_p", 1e-60, "above 0"),
        ("top_p", float("nan"), "above 0"),
        ("min_p", -0.1, "0 (off) to 1"),
        ("min_p", 1.5, "0 (off) to 1"),
        ("repetition_penalty", 0, "above 0"),
        ("repetition_penalty", float("inf"), "at most 100"),
        ("presence_penalty", 2.1, "-2 to 2"),
        ("frequency_penalty", -2.1, "-2 to 2"),
        ("seed", -1, "2^64 - 1"),
        ("seed", 1 << 64, "2^64 - 1"),
        ("seed", 1.0, "2^64 - 1"),
        ("logit_bias", [1, 2], "mapping"),
        ("logit_bias", {"x": 1.0}, "token id"),
        ("logit_bias", {-1: 1.0}, "token id"),
        ("logit_bias", {5: 100.5}, "-100 to 100"),
        ("logit_bias", {5: float("nan")}, "-100 to 100"),
        ("logit_bias", {5: None}, "-100 to 100"),
        ("logit_bias", {5: 1.0, "5": 2.0}, "twice"),
        ("logit_bias", dict.fromkeys(range(MAX_BIAS + 1), 1.0), "at most 512"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line_that_names_what_is_allowed(name, value, allowed):
    with pytest.raises(ParameterError) as refusal:
        Sampling(**{name: value})
    text = str(refusal.value)
    assert name in text
    assert allowed in text
    assert "\n" not in text


def test_the_refused_value_stands_in_the_text():
    with pytest.raises(ParameterError, match=r"top_p=1\.5 "):
        Sampling(top_p=1.5)


def test_defaults_are_greedy_and_everything_else_is_off():
    s = Sampling()
    assert s.greedy
    assert s.plain
    assert dataclasses.asdict(s) == {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}, "seed": None,
    }  # fmt: skip
    assert Sampling.names() == tuple(dataclasses.asdict(s))


def test_values_are_normalised_to_plain_numbers():
    s = Sampling(temperature=np.float32(0.5), top_k=np.int64(-1), top_p=1, logit_bias={"7": 1}, seed=np.uint64(3))
    assert (s.temperature, s.top_k, s.top_p, s.logit_bias, s.seed) == (0.5, 0, 1.0, {7: 1.0}, 3)
    assert [type(v) for v in (s.temperature, s.top_k, s.top_p, s.seed)] == [float, int, float, int]


def test_settings_compare_hash_copy_and_travel():
    s = Sampling(temperature=1.0, logit_bias={3: -1.0}, seed=9)
    assert s == Sampling(temperature=1.0, logit_bias={3: -1.0}, seed=9)
    assert hash(s) == hash(copy.deepcopy(s))
    assert pickle.loads(pickle.dumps(s)) == s


def test_settings_cannot_be_changed_after_they_were_checked():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sampling().temperature = 3.0  # type: ignore[misc]


def test_only_bias_and_penalties_adjust():
    assert not Sampling(temperature=1.0, top_k=5, top_p=0.5, min_p=0.1, seed=0).adjusts
    for changed in (
        {"logit_bias": {1: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 1},
        {"frequency_penalty": 1},
    ):
        assert Sampling(**changed).adjusts
        assert not Sampling(**changed).plain


def test_a_fresh_seed_is_made_only_for_a_draw_that_has_none():
    assert Sampling().seeded() == Sampling()
    assert Sampling(temperature=1.0, seed=5).seeded().seed == 5
    one, two = Sampling(temperature=1.0).seeded(), Sampling(temperature=1.0).seeded()
    assert one.seed is not None
    assert one.seed != two.seed


def test_a_biased_id_outside_the_vocabulary_is_refused():
    Sampling(logit_bias={99: 1.0}).check_vocabulary(100)
    with pytest.raises(ParameterError, match="token 100, which is outside the vocabulary of 100"):
        Sampling(logit_bias={100: 1.0}).check_vocabulary(100)


def test_packed_words_hold_the_settings_in_the_order_the_kernels_read():
    s = Sampling(
        temperature=0.75, top_k=40, top_p=0.5, min_p=0.25, repetition_penalty=1.5, presence_penalty=-1.0,
        frequency_penalty=2.0, logit_bias={9: 1.0, 4: -2.0}, seed=(7 << 32) + 5,
    )  # fmt: skip
    words = pack([Sampling(), s], [False, True])
    assert words.shape == (2, 16)
    assert words.dtype == np.uint32
    assert words[1].view(np.float32)[[0, 2, 3, 4, 5, 6]].tolist() == [0.75, 0.5, 0.25, 1.5, -1.0, 2.0]
    assert words[1, [1, 7, 8, 9, 10]].tolist() == [40, 5, 7, 2, 3]
    assert words[0, 10] == 0
    bias = pack_bias([Sampling(), s])
    assert bias.shape == (2, MAX_BIAS, 2)
    assert bias[1, :2, 0].tolist() == [9, 4]
    assert bias[1, :2, 1].copy().view(np.float32).tolist() == [1.0, -2.0]
    assert not bias[0].any()


def test_a_draw_without_a_seed_is_not_packed():
    with pytest.raises(ParameterError, match=r"temperature=1\.0 without a seed"):
        pack([Sampling(temperature=1.0)])
    with pytest.raises(ParameterError, match="2 values of ignore_eos for 1 slots"):
        pack([Sampling()], [True, False])
