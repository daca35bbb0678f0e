"""sample: one token a line of logits: bias and penalties, then the greatest logit or a seeded draw."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.engine.sampling import MAX_BIAS, Sampling, pack, pack_bias
from labkit.errors import ParameterError
from labkit.ops.top_logprobs import check, cut, padded, partials_bytes, record_scan
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer, Pool, Range
from labkit.vulkan.program import Program

CHOSEN_WORDS = 4  # of a line of `chosen`: token, log-probability (float bits), flags, slot
LIVE, NOT_FINITE = 1, 8  # flags of `chosen`


def adjusted(logits: np.ndarray, s: Sampling, counts: np.ndarray) -> np.ndarray:
    """One line of logits [vocab] after bias and penalties, rounded to float32 where the kernel rounds."""
    x, f = logits.astype(np.float32), np.float32
    for token, value in s.logit_bias.items():
        x[token] += f(value)
    generated, penalty = counts & 0xFFFF, f(s.repetition_penalty)
    x = np.where(counts != 0, np.where(x > 0, x / penalty, x * penalty), x)
    x = x - f(s.frequency_penalty) * generated.astype(f)
    out: np.ndarray = np.where(generated > 0, x - f(s.presence_penalty), x)
    return out


def kept(y: np.ndarray, s: Sampling) -> np.ndarray:
    """Which adjusted logits [vocab] may be drawn: a mask. Top-k, then top-p over those, then min-p; ties stay."""
    y = y.astype(np.float64)
    mask = y > -np.inf
    if 0 < s.top_k < y.size:
        mask &= y >= np.partition(y, -s.top_k)[-s.top_k]
    weight = np.where(mask, np.exp((y - y.max()) / np.float32(s.temperature)), 0.0)
    if s.top_p < 1:
        order = np.argsort(-y, kind="stable")
        reached = np.searchsorted(np.cumsum(weight[order]), np.float32(s.top_p) * weight.sum())
        mask &= y >= y[order[min(reached, y.size - 1)]]
    inside: np.ndarray = mask & (weight >= np.float64(np.float32(s.min_p)))
    return inside


def hash_bits(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """The 32 random bits of each token id at a position, as the kernel makes them."""

    def mix(h: np.ndarray) -> np.ndarray:  # lowbias32
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
        h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
        out: np.ndarray = h ^ (h >> np.uint32(16))
        return out

    low, high, place = (np.array([v], np.uint32) for v in (seed & 0xFFFFFFFF, seed >> 32, position))
    key = mix(mix(mix(low) + high) + place)
    return mix(mix(ids.astype(np.uint32) ^ key) + mix(key ^ np.uint32(0x9E3779B9)))


def reference(logits: np.ndarray, s: Sampling, counts: np.ndarray, position: int) -> tuple[int, float]:
    """(token, its log-probability under the raw logits) for one line [vocab] with its slot's counts [vocab]."""
    y = adjusted(logits, s, counts)
    token = int(y.argmax())
    if not s.greedy:
        u = (hash_bits(s.seed or 0, position, np.arange(y.size)) + 0.5) / 2.0**32
        score = (y - np.float64(y.max())) / np.float32(s.temperature) - np.log(-np.log1p(-u))
        token = int(np.where(kept(y, s), score, -np.inf).argmax())
    x = logits.astype(np.float64)
    return token, float(x[token] - x.max() - np.log(np.exp(x - x.max()).sum()))


@dataclass(frozen=True)
class Workspace:
    """What the sampling kernels hand each other; its content need not outlive a step."""

    adjusted: Buffer  # float32 [lines][stride]
    best: Buffer  # uint32 [lines][chunks][2]
    limits: Buffer  # uint32 [lines][2]
    drawn: Buffer  # uint32 [lines][chunks][2]
    candidates: Buffer  # uint32 [lines][list][2]


def workspace_bytes(device: Device, lines: int, vocab: int, stride: int) -> int:
    """Bytes of a `Workspace`."""
    return lines * (stride * 4 + cut(device).chunks(vocab) * 16 + 8 + _list(device, stride) * 8)


def line_group(device: Device) -> tuple[int, int]:
    """(LOCAL, FAN) of the kernels that take a whole line a workgroup; on a CPU, barriers of few are cheap."""
    return (16, 4) if device.is_cpu else (256, 16)


def _list(device: Device, stride: int) -> int:
    """Places in the list of one line's candidates: every invocation's share of the line, in whole vec4s."""
    local, _ = line_group(device)
    return -(-stride // (4 * local)) * 4 * local


def workspace(pool: Pool, lines: int, vocab: int, stride: int) -> Workspace:
    """A workspace for up to `lines` lines of logits, from `pool`."""
    check(lines, vocab, stride)
    chunks = cut(pool.device).chunks(vocab)
    return Workspace(
        pool.buffer(lines * stride * 4, label="adjusted logits"),
        pool.buffer(lines * chunks * 8, label="best of chunks"),
        pool.buffer(lines * 8, label="sampling thresholds"),
        pool.buffer(lines * chunks * 8, label="draws of chunks"),
        pool.buffer(lines * _list(pool.device, stride) * 8, label="candidates of a draw"),
    )


def record(
    program: Program,
    *,
    logits: Buffer,
    rows: Buffer,
    logit_rows: Buffer,
    params: Buffer,
    partials: Buffer,
    chosen: Buffer,
    lines: int,
    vocab: int,
    stride: int,
    bias: Buffer | None = None,
    counts: Buffer | None = None,
    space: Workspace | None = None,
    greedy: bool = False,
    scan: bool = True,
) -> None:
    """Add the choice of a token for each line of logits float32 [lines][stride].

    rows: uint32 [R][8]; logit_rows: uint32 [lines], the row of each line or NONE; params: uint32 [slots][16]
    (`sampling.pack`); bias: uint32 [slots][512][2] (`sampling.pack_bias`); counts: uint32 [slots][vocab];
    partials: `top_logprobs.partials_bytes`; chosen (written): uint32 [lines][4] (token, log-probability, flags, slot).
    `greedy=True` records only what slots need whose `Sampling.plain` holds; then bias, counts and space are not needed.
    `scan=False` when `top_logprobs.record_scan` was added already. Raises ParameterError.
    """
    check(lines, vocab, stride)
    device, form = program.device, cut(program.device)
    chunks = form.chunks(vocab)
    wide, parts = logits.range(0, lines * stride * 4), partials.range(0, partials_bytes(device, lines, vocab))
    if scan:
        record_scan(
            program, logits=logits, logit_rows=logit_rows, partials=partials, lines=lines, vocab=vocab, stride=stride
        )
    who: list[Buffer | Range] = [rows, logit_rows.range(0, lines * 4), params]
    common = {
        "logits": logits,
        "rows": rows,
        "logit_rows": logit_rows,
        "params": params,
        "vocab": vocab,
        "stride": stride,
    }
    shape: dict[str, int | float | bool] = {"LOCAL": form.local, "QUADS": form.quads, "FAN": form.fan}
    local, fan = line_group(device)
    reduce: dict[str, int | float | bool] = {"LOCAL": local, "FAN": fan}
    candidates: list[Range] = []
    if not greedy:
        if bias is None or counts is None or space is None:
            raise ParameterError("sampling that is not greedy needs bias, counts and space (or record greedy=True)")
        line_bytes = lines * chunks * 8
        altered, best = space.adjusted.range(0, wide.nbytes), space.best.range(0, line_bytes)
        limits, drawn = space.limits.range(0, lines * 8), space.drawn.range(0, line_bytes)
        listed = space.candidates.range(0, lines * _list(device, stride) * 8)
        candidates = [best, drawn]
        program.dispatch(
            device.kernel("sample_adjust", constants=shape | {"MAX_BIAS": MAX_BIAS}),
            (chunks, lines),
            common | {"bias": bias, "counts": counts, "partials": partials, "adjusted": altered, "best": best},
            reads=[*who, wide, bias, counts, parts],
            writes=[altered, best],
            label="sample: bias and penalties",
            nbytes=lines * chunks * 24,
        )
        program.dispatch(
            device.kernel("sample_threshold", constants=reduce),
            lines,
            common
            | {
                "adjusted": altered,
                "best": best,
                "limits": limits,
                "drawn": drawn,
                "candidates": listed,
                "chunks": chunks,
            },
            reads=[*who, wide, altered, best],
            writes=[limits, drawn, listed],
            label="sample: top-k, top-p, min-p",
            nbytes=lines * chunks * 8,
        )
        program.dispatch(
            device.kernel("sample_draw", constants=shape),
            (chunks, lines),
            common | {"adjusted": altered, "best": best, "limits": limits, "drawn": drawn},
            reads=[*who, wide, altered, best, limits],
            writes=[drawn],
            label="sample: draw",
            nbytes=lines * chunks * 16,
        )
    nothing = partials  # never read when FULL is off
    program.dispatch(
        device.kernel("sample", constants=reduce | {"FULL": not greedy}),
        lines,
        common
        | {
            "partials": partials, "chosen": chosen, "chunks": chunks,
            "best": candidates[0] if candidates else nothing, "drawn": candidates[1] if candidates else nothing,
        },
        reads=[*who, wide, parts, *candidates],
        writes=[chosen.range(0, lines * CHOSEN_WORDS * 4)],
        label="sample: choose",
        nbytes=lines * (chunks * 16 + 20),
    )  # fmt: skip


def sample(
    device: Device,
    logits: np.ndarray,
    samplings: Sequence[Sampling],
    positions: Sequence[int],
    counts: np.ndarray | None = None,
    *,
    greedy: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run once on logits [L, vocab], line i being slot i at positions[i] with counts[i].

    Returns (tokens uint32 [L], raw log-probabilities float32 [L], flags uint32 [L]).
    """
    wide = padded(logits)
    lines, vocab = logits.shape
    if len(samplings) != lines or len(positions) != lines:
        raise ParameterError(
            f"{lines} lines of logits, {len(samplings)} samplings, {len(positions)} positions: give one each"
        )
    for s in samplings:
        s.check_vocabulary(vocab)
    table = np.zeros((lines, 8), np.uint32)
    table[:, 1], table[:, 2], table[:, 3], table[:, 4] = np.arange(lines), positions, 1, 1
    seen = np.zeros((lines, vocab), np.uint32) if counts is None else np.ascontiguousarray(counts, np.uint32)
    with device.pool("sample") as pool:
        chosen = pool.buffer(lines * CHOSEN_WORDS * 4)
        program = device.program("sample")
        record(
            program, logits=pool.buffer(wide), rows=pool.buffer(table),
            logit_rows=pool.buffer(np.arange(lines, dtype=np.uint32)), params=pool.buffer(pack(samplings)),
            partials=pool.buffer(partials_bytes(device, lines, vocab)), chosen=chosen, lines=lines, vocab=vocab,
            stride=wide.shape[1], bias=pool.buffer(pack_bias(samplings)), counts=pool.buffer(seen),
            space=workspace(pool, lines, vocab, wide.shape[1]), greedy=greedy,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        out = chosen.download(np.uint32, (lines, CHOSEN_WORDS))
        return out[:, 0].copy(), out[:, 1].copy().view(np.float32), out[:, 2].copy()
