"""Sampling against independent implementations: choices, sets, probabilities; draws never depend on company."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax

from labkit.engine.sampling import Sampling, pack, pack_bias
from labkit.errors import ParameterError
from labkit.ops import sample as op
from labkit.ops import top_logprobs as top_op
from labkit.ops.sample import LIVE, NOT_FINITE, hash_bits, kept, reference, sample
from labkit.ops.top_logprobs import NONE, Cut, padded, partials_bytes

DRAWS = 20_000
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"temperature": 0.8, "top_k": 7},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.0, "repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": -0.3},
    {"temperature": 0.7, "top_p": 0.95, "logit_bias": {3: 4.0, 200: -3.0}, "frequency_penalty": 0.4},
]


def draw(lines: int, vocab: int, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((lines, vocab)) * scale).astype(np.float32)


def seen(lines: int, vocab: int, seed: int = 0) -> np.ndarray:
    """Counts: most tokens unseen, some in the prompt, some generated up to three times, some both."""
    rng = np.random.default_rng(seed)
    generated = np.where(rng.random((lines, vocab)) < 0.2, rng.integers(1, 4, (lines, vocab)), 0)
    prompt = np.where(rng.random((lines, vocab)) < 0.2, 1 << 31, 0)
    return (generated + prompt).astype(np.uint32)


def adjusted_plainly(logits: np.ndarray, s: Sampling, counts: np.ndarray) -> list[float]:
    """Bias and penalties, one token after another, in Python's floats."""
    out = []
    for token, logit in enumerate(logits.tolist()):
        x, count = logit + s.logit_bias.get(token, 0.0), int(counts[token])
        if count != 0:
            x = x / s.repetition_penalty if x > 0 else x * s.repetition_penalty
        times = count % 65536
        x -= s.frequency_penalty * times + (s.presence_penalty if times else 0.0)
        out.append(x)
    return out


def probabilities(y: Sequence[float], s: Sampling) -> np.ndarray:
    """What a draw's distribution must be, by sorting and walking down the list, in float64."""
    z = np.asarray(y, np.float64) / s.temperature
    order = sorted(range(len(z)), key=lambda i: -z[i])
    if 0 < s.top_k < len(z):
        order = [i for i in order if z[i] >= z[order[s.top_k - 1]]]
    p = {i: float(np.exp(z[i] - z[order[0]])) for i in order}
    if s.top_p < 1:
        whole, mass, last = sum(p.values()), 0.0, order[0]
        for i in order:
            last = i
            mass += p[i]
            if mass >= s.top_p * whole:
                break
        p = {i: v for i, v in p.items() if z[i] >= z[last]}
    p = {i: v for i, v in p.items() if v >= s.min_p * max(p.values())}
    out = np.zeros(len(z))
    for i, v in p.items():
        out[i] = v / sum(p.values())
    return out


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """The p-value of counts against probabilities; bins expected fewer than 5 times are pooled."""
    want = expected * observed.sum()
    few = want < 5
    got, want = np.append(observed[~few], observed[few].sum()), np.append(want[~few], want[few].sum())
    got, want = (got[:-1], want[:-1]) if want[-1] == 0 else (got, want)
    return float(stats.chisquare(got, want * got.sum() / want.sum()).pvalue)


class Bench:
    """Runs the sampling program over rows of one's own making, and shows the thresholds it found."""

    def __init__(self, device, logits, samplings, rows=None, logit_rows=None, *, greedy=False):
        wide, (lines, vocab) = padded(logits), logits.shape
        if rows is None:
            rows = np.zeros((lines, 8), np.uint32)
            rows[:, 1], rows[:, 3] = np.arange(lines), 1
        logit_rows = np.arange(lines, dtype=np.uint32) if logit_rows is None else np.asarray(logit_rows, np.uint32)
        with device.pool() as pool:
            space = op.workspace(pool, lines, vocab, wide.shape[1])
            chosen = pool.buffer(lines * 16)
            program = device.program()
            op.record(
                program, logits=pool.buffer(wide), rows=pool.buffer(rows), logit_rows=pool.buffer(logit_rows),
                params=pool.buffer(pack(samplings)), bias=pool.buffer(pack_bias(samplings)),
                counts=pool.buffer(np.zeros((len(samplings), vocab), np.uint32)), space=space, chosen=chosen,
                partials=pool.buffer(partials_bytes(device, lines, vocab)), lines=lines, vocab=vocab,
                stride=wide.shape[1], greedy=greedy,
            )  # fmt: skip
            program.run()
            pool.check_guards()
            program.close()
            self.chosen = chosen.download(np.uint32, (lines, 4))
            self.limits = space.limits.download(np.float32, (lines, 2))


# greedy


@pytest.mark.parametrize(("lines", "vocab"), [(1, 256), (2, 257), (33, 768), (5, 1025), (3, 49152), (1, 151936)])
def test_greedy_takes_the_greatest_logit_and_reports_its_log_probability(device, lines, vocab):
    x = draw(lines, vocab, seed=vocab)
    tokens, logprobs, flags = sample(device, x, [Sampling()] * lines, [0] * lines, greedy=True)
    want = log_softmax(x.astype(np.float64), axis=1).max(axis=1)
    assert np.array_equal(tokens, x.argmax(axis=1))
    assert np.abs(logprobs - want).max() < 1e-5
    assert np.all(flags == LIVE)
    for got, again in zip(sample(device, x, [Sampling()] * lines, [0] * lines), (tokens, logprobs, flags), strict=True):
        assert np.array_equal(got, again)  # the program that could also draw gives the same bits


@pytest.mark.quick
def test_ties_go_to_the_lowest_id(device):
    x = np.zeros((3, 5000), np.float32)
    x[1, [4999, 1200, 1201]], x[2] = 2.0, -0.0
    x[2, 3000] = 0.0
    tokens, _, _ = sample(device, x, [Sampling()] * 3, [0] * 3, greedy=True)
    assert tokens.tolist() == [0, 1200, 0]


@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30])
def test_tiny_and_huge_logits_are_taken_as_they_are(device, scale):
    x = draw(3, 700, scale=scale)
    samplings = [Sampling(), Sampling(temperature=1.0, top_k=1, seed=1), Sampling(temperature=0.5, top_p=0.5, seed=1)]
    tokens, _, flags = sample(device, x, samplings, [0] * 3)
    assert np.array_equal(tokens[:2], x[:2].argmax(axis=1))
    assert scale < 1 or tokens[2] == x[2].argmax()
    assert np.all(flags == LIVE)


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5, "top_p": 0.5}], ids=str
)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_flagged_and_disturb_nobody(device, settings, broken):
    x = draw(3, 2050)
    s = Sampling(**settings, seed=4)
    clean = sample(device, x, [s] * 3, [1, 2, 3])
    x[1, (slice(None) if broken == -np.inf else 2049)] = broken
    got = sample(device, x, [s] * 3, [1, 2, 3])
    assert got[0][1] == NONE
    assert np.isnan(got[1][1])
    assert got[2].tolist() == [LIVE, LIVE | NOT_FINITE, LIVE]
    for a, b in zip(got, clean, strict=True):
        assert np.array_equal(a[[0, 2]], b[[0, 2]])


def test_inactive_and_padding_lines_choose_nothing(device):
    x = draw(4, 300)
    x[[1, 2]] = np.nan
    rows = np.zeros((3, 8), np.uint32)
    rows[:, 1], rows[:, 3] = [2, 1, 0], [1, 0, 1]
    for settings in (Sampling(), Sampling(temperature=1.0, top_k=1, seed=0)):
        bench = Bench(device, x, [settings] * 3, rows, [0, 1, NONE, 2], greedy=settings.plain)
        assert bench.chosen[:, 0].tolist() == [x[0].argmax(), NONE, NONE, x[3].argmax()]
        assert bench.chosen[:, 2].tolist() == [LIVE, 0, 0, LIVE]
        assert bench.chosen[[0, 3], 3].tolist() == [2, 0]


# bias and penalties


@pytest.mark.parametrize("vocab", [257, 3000])
def test_penalties_and_bias_equal_a_plain_reimplementation(device, vocab):
    rng = np.random.default_rng(5)
    x, counts = draw(24, vocab, scale=1.0), seen(24, vocab)
    samplings = [
        Sampling(
            repetition_penalty=float(rng.uniform(0.5, 2)), presence_penalty=float(rng.uniform(-2, 2)),
            frequency_penalty=float(rng.uniform(-2, 2)),
            logit_bias={int(i): float(rng.uniform(-3, 3)) for i in rng.integers(0, vocab, int(rng.integers(0, 40)))},
        )
        for _ in range(24)
    ]  # fmt: skip
    tokens, logprobs, _ = sample(device, x, samplings, [0] * 24, counts)
    for i, s in enumerate(samplings):
        plain = adjusted_plainly(x[i], s, counts[i])
        assert np.allclose(op.adjusted(x[i], s, counts[i]), plain, rtol=0, atol=1e-5)
        assert tokens[i] == np.argmax(plain)
        assert abs(logprobs[i] - log_softmax(x[i].astype(np.float64))[tokens[i]]) < 1e-5


@pytest.mark.quick
def test_a_bias_of_100_forces_a_token_and_of_minus_100_bans_it(device):
    x = draw(4, 1500)
    best = int(x[1].argmax())
    samplings = [
        Sampling(logit_bias={1499: 100.0}), Sampling(logit_bias={best: -100.0}),
        Sampling(temperature=1.0, seed=3, logit_bias={0: 100}),
        Sampling(temperature=1.0, seed=3, logit_bias={best: -100.0}),
    ]  # fmt: skip
    tokens, _, _ = sample(device, x, samplings, [0] * 4)
    others = np.where(np.arange(1500) == best, -np.inf, x[1])
    assert tokens[:3].tolist() == [1499, others.argmax(), 0]
    assert tokens[3] != best


def test_as_many_biases_as_fit_are_all_applied(device):
    ids = np.random.default_rng(0).permutation(3000)[:512]
    samplings = [
        Sampling(logit_bias={int(i): (50.0 if i == last else 10.0) for i in ids}) for last in ids[[0, 255, 511]]
    ]
    tokens, _, _ = sample(device, np.zeros((3, 3000), np.float32), samplings, [0] * 3)
    assert tokens.tolist() == ids[[0, 255, 511]].tolist()


# which tokens may be drawn


def lines_of_every_kind(vocab: int) -> np.ndarray:
    """Flat, sharp, tied, masked, huge and ordinary lines of logits."""
    rng = np.random.default_rng(vocab)
    zipf = -1.3 * np.log1p(rng.permutation(vocab))
    masked = np.where(rng.random(vocab) < 0.7, -np.inf, rng.standard_normal(vocab))
    masked[3] = 1.0
    kinds = [
        rng.standard_normal(vocab) * 0.01, rng.standard_normal(vocab) * 3, zipf,
        np.round(rng.standard_normal(vocab) * 2),
        np.zeros(vocab), masked, rng.standard_normal(vocab) * 1e4, zipf + 500, -40.0 + rng.standard_normal(vocab),
    ]  # fmt: skip
    return np.stack(kinds).astype(np.float32)


@pytest.mark.parametrize("vocab", [257, 4099, 49152])
def test_top_k_keeps_the_k_greatest_and_their_ties(device, vocab):
    x = lines_of_every_kind(vocab)
    for k in (1, 2, 50, 200, vocab - 1):
        bench = Bench(device, x, [Sampling(temperature=1.0, top_k=k, seed=0)] * len(x))
        for line, (limit, most) in zip(x, bench.limits, strict=True):
            want = np.sort(line)[-k]
            assert most == line.max()
            assert np.array_equal(line >= limit, line >= want)


@pytest.mark.parametrize("vocab", [257, 4099, 49152])
@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_top_p_keeps_the_smallest_set_that_reaches_p(device, vocab, temperature):
    x = lines_of_every_kind(vocab)
    for p in (1e-6, 0.3, 0.9, 0.999):
        bench = Bench(device, x, [Sampling(temperature=temperature, top_p=p, seed=0)] * len(x))
        for line, (limit, _) in zip(x, bench.limits, strict=True):
            weight = np.exp((line.astype(np.float64) - line.max()) / temperature)
            weight /= weight.sum()
            inside = line >= limit
            least = line[inside].min()
            assert weight[inside].sum() >= p - 2e-6  # sums of float32 weights lie within 2e-6 of the true ones
            assert weight[line > least].sum() < p + 2e-6


def test_top_p_counts_within_what_top_k_kept_and_min_p_comes_last(device):
    x = lines_of_every_kind(4099)[[1, 2, 3, 5, 7]]
    for settings in (
        {"top_k": 30, "top_p": 0.7},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.2},
        {"min_p": 0.01},
        {"min_p": 1.0},
    ):
        s = Sampling(temperature=1.1, seed=0, **settings)
        bench = Bench(device, x, [s] * len(x))
        for line, (limit, _) in zip(x, bench.limits, strict=True):
            want = probabilities(line, s) > 0
            assert np.array_equal((line >= limit) & (line > -np.inf), want)
            assert np.array_equal(kept(line, s), want)


# the draw


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_follow_the_exact_probabilities(device, settings):
    vocab, batch = 257, 2500
    x, counts = draw(1, vocab, seed=11), seen(1, vocab, seed=2)
    observed = np.zeros(vocab)
    s = Sampling(**settings, seed=123456789012)
    for start in range(0, DRAWS, batch):
        lines = np.broadcast_to(x, (batch, vocab))
        tokens, _, _ = sample(
            device, lines, [s] * batch, list(range(start, start + batch)), np.broadcast_to(counts, (batch, vocab))
        )
        observed += np.bincount(tokens, minlength=vocab)
    want = probabilities(adjusted_plainly(x[0], s, counts[0]), s)
    assert not observed[want == 0].any()
    assert chi_square(observed, want) > 1e-3


def test_draws_of_many_seeds_follow_the_exact_probabilities(device):
    vocab, batch = 300, 2500
    x = draw(1, vocab, seed=3)
    lines, observed = np.broadcast_to(x, (batch, vocab)), np.zeros(vocab)
    for start in range(0, DRAWS, batch):
        samplings = [Sampling(temperature=1.0, seed=seed) for seed in range(start, start + batch)]
        observed += np.bincount(sample(device, lines, samplings, [77] * batch)[0], minlength=vocab)
    assert chi_square(observed, probabilities(x[0], samplings[0])) > 1e-3


def test_draws_at_neighbouring_positions_and_seeds_are_independent(device):
    vocab, batch = 8, 2500
    lines = np.zeros((batch, vocab), np.float32)
    by_position = sample(device, lines, [Sampling(temperature=1.0, seed=5)] * batch, list(range(batch)))[0]
    by_seed = sample(device, lines, [Sampling(temperature=1.0, seed=s) for s in range(batch)], [5] * batch)[0]
    for tokens in (by_position, by_seed):
        pairs = np.bincount(tokens[:-1] * vocab + tokens[1:], minlength=vocab * vocab)
        assert chi_square(pairs, np.full(vocab * vocab, 1 / vocab**2)) > 1e-3


def test_the_hash_is_even_over_tokens_positions_and_seeds():
    ids = np.arange(4096)
    for seed, position in ((0, 0), (1, 0), (0, 1), (1 << 32, 0), ((1 << 64) - 1, 100_000)):
        bits = hash_bits(seed, position, ids)
        assert chi_square(np.bincount(bits >> 26, minlength=64), np.full(64, 1 / 64)) > 1e-3
    first = [np.array([hash_bits(s, p, ids[:1])[0] for s, p in pairs]) for pairs in (
        [(0, p) for p in range(4096)], [(s, 0) for s in range(4096)], [(s << 32, 0) for s in range(4096)],
    )]  # fmt: skip
    for bits in first:
        assert chi_square(np.bincount(bits >> 26, minlength=64), np.full(64, 1 / 64)) > 1e-3


@pytest.mark.parametrize(("lines", "vocab"), [(200, 257), (60, 4099), (3, 49152), (1, 151936)])
def test_the_kernel_makes_the_draw_of_the_reference(device, lines, vocab):
    x, counts = draw(lines, vocab, seed=lines), seen(lines, vocab)
    samplings = [Sampling(**SETTINGS[i % len(SETTINGS)], seed=(i * 7919) << 20) for i in range(lines)]
    tokens, logprobs, _ = sample(device, x, samplings, list(range(lines)), counts)
    want = [reference(x[i], samplings[i], counts[i], i) for i in range(lines)]
    assert tokens.tolist() == [token for token, _ in want]
    assert np.abs(logprobs - [logprob for _, logprob in want]).max() < 1e-5


def test_a_seeded_draw_is_the_same_in_any_row_and_any_company(device):
    lines, vocab = 33, 2500
    x, counts = draw(lines, vocab), seen(lines, vocab)
    samplings = [Sampling(**SETTINGS[i % len(SETTINGS)], seed=i) for i in range(lines)]
    positions = np.arange(lines) * 3
    whole = sample(device, x, samplings, positions.tolist(), counts)
    for part in ([0], [32], list(range(5, 14)), list(range(32, -1, -1))):
        got = sample(device, x[part], [samplings[i] for i in part], positions[part].tolist(), counts[part])
        for a, b in zip(got, whole, strict=True):
            assert np.array_equal(a, b[part], equal_nan=True)


def test_another_seed_or_position_draws_anew(device):
    x = np.zeros((64, 5000), np.float32)
    samplings = [Sampling(temperature=1.0, seed=i // 32) for i in range(64)]
    tokens, _, _ = sample(device, x, samplings, list(range(32)) * 2)
    assert len(set(tokens.tolist())) > 60  # 64 draws of 5,000: on average 0.4 coincide


@pytest.mark.parametrize(
    ("cut", "group"), [(Cut(256, 2, 16), (256, 16)), (Cut(64, 4, 8), (32, 8)), (Cut(8, 4, 2), (8, 2))], ids=str
)
def test_every_cut_of_the_work_chooses_the_same_tokens(device, monkeypatch, cut, group):
    """The first is what GPUs run."""
    lines, vocab = 27, 5003
    x, counts = draw(lines, vocab, seed=8), seen(lines, vocab)
    samplings = [Sampling(**SETTINGS[i % len(SETTINGS)], seed=i) if i % 3 else Sampling() for i in range(lines)]
    for module in (op, top_op):
        monkeypatch.setattr(module, "cut", lambda _: cut)
    monkeypatch.setattr(op, "line_group", lambda _: group)
    tokens, logprobs, _ = sample(device, x, samplings, list(range(lines)), counts)
    want = [reference(x[i], samplings[i], counts[i], i) for i in range(lines)]
    assert tokens.tolist() == [token for token, _ in want]
    assert np.abs(logprobs - [logprob for _, logprob in want]).max() < 1e-5


# refusals


def test_what_sampling_needs_beyond_greedy_must_be_given(device):
    with device.pool() as pool:
        b, program = pool.buffer(4096), device.program()
        names = ("logits", "rows", "logit_rows", "params", "partials", "chosen")
        with pytest.raises(ParameterError, match="needs bias, counts and space"):
            op.record(program, **dict.fromkeys(names, b), lines=1, vocab=100, stride=100)
        with pytest.raises(ParameterError, match="1 lines of 100 logits do not fit a stride of 98"):
            op.record(program, **dict.fromkeys(names, b), lines=1, vocab=100, stride=98, greedy=True)


def test_a_biased_id_outside_the_vocabulary_is_refused_before_the_device_is_touched(device):
    with pytest.raises(ParameterError, match="token 300"):
        sample(device, draw(1, 300), [Sampling(logit_bias={300: 1.0})], [0])
    with pytest.raises(ParameterError, match="2 lines of logits, 1 samplings, 2 positions"):
        sample(device, draw(2, 300), [Sampling()], [0, 0])
