"""top_logprobs: the most likely ids of each line of logits, their log-probabilities, and the line's log-sum-exp."""

from dataclasses import dataclass

import numpy as np

from labkit.errors import ParameterError
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Buffer
from labkit.vulkan.program import Program

MAX_TOP = 64
NONE = 0xFFFFFFFF  # of logit_rows: skip the line; of ids: no such id


def reference(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids [L, count], log-probabilities [L, count], lse [L]) of logits [L, vocab], in float64; ties: lowest id."""
    x = logits.astype(np.float64)
    most = x.max(axis=1, keepdims=True)
    lse = most + np.log(np.exp(x - most).sum(axis=1, keepdims=True))
    ids = np.argsort(-x, axis=1, kind="stable")[:, :count]
    return ids.astype(np.uint32), np.take_along_axis(x - lse, ids, axis=1), lse[:, 0]


@dataclass(frozen=True)
class Cut:
    """How a line of logits is cut: LOCAL invocations a workgroup, QUADS vec4 each, FAN combined in the first level."""

    local: int
    quads: int
    fan: int

    @property
    def chunk(self) -> int:
        """Logits a workgroup handles."""
        return self.local * self.quads * 4

    def chunks(self, vocab: int) -> int:
        """Workgroups a line takes."""
        return -(-vocab // self.chunk)


def cut(device: Device) -> Cut:
    """The device's cut. It depends on nothing else, so sums keep their order at every number of lines."""
    return Cut(16, 16, 4) if device.is_cpu else Cut(256, 2, 16)


def partials_bytes(device: Device, lines: int, vocab: int) -> int:
    """Bytes of the buffer `partials`, shared by `top_logprobs` and `sample`."""
    return lines * cut(device).chunks(vocab) * 16


def check(lines: int, vocab: int, stride: int) -> None:
    """Raise ParameterError when logits [lines][stride] cannot hold `vocab` logits a line in whole vec4s."""
    if lines < 1 or vocab < 1 or stride % 4 or stride < vocab:
        raise ParameterError(f"{lines} lines of {vocab} logits do not fit a stride of {stride} (a multiple of 4)")


def record_scan(
    program: Program, *, logits: Buffer, logit_rows: Buffer, partials: Buffer, lines: int, vocab: int, stride: int
) -> None:
    """Add the pass over logits float32 [lines][stride] that fills `partials`; lines of logit_rows NONE are skipped."""
    check(lines, vocab, stride)
    form = cut(program.device)
    kernel = program.device.kernel(
        "top_logprobs_scan", constants={"LOCAL": form.local, "QUADS": form.quads, "FAN": form.fan}
    )
    program.dispatch(
        kernel,
        (form.chunks(vocab), lines),
        {
            "logits": logits, "logit_rows": logit_rows, "partials": partials, "vocab": vocab, "stride": stride,
        },
        reads=[logits.range(0, lines * stride * 4), logit_rows.range(0, lines * 4)],
        writes=[partials.range(0, partials_bytes(program.device, lines, vocab))],
        label="logits scan",
        flops=3 * lines * vocab,
        nbytes=lines * vocab * 4,
    )  # fmt: skip


def record(
    program: Program,
    *,
    logits: Buffer,
    logit_rows: Buffer,
    partials: Buffer,
    top: Buffer,
    lse: Buffer,
    lines: int,
    vocab: int,
    stride: int,
    count: int,
    scan: bool = True,
) -> None:
    """Add top_logprobs of logits float32 [lines][stride]; `scan=False` when `record_scan` was added already.

    top: uint32 [lines][count][2] (id, log-probability as float bits); lse: float32 [lines]; logit_rows: uint32 [lines].
    count: 1 to 64, at most vocab. Raises ParameterError.
    """
    check(lines, vocab, stride)
    if not 1 <= count <= min(MAX_TOP, vocab):
        raise ParameterError(f"count={count} is out of range: 1 to {min(MAX_TOP, vocab)} of a vocabulary of {vocab}")
    if scan:
        record_scan(
            program, logits=logits, logit_rows=logit_rows, partials=partials, lines=lines, vocab=vocab, stride=stride
        )
    device, form = program.device, cut(program.device)
    chunks = form.chunks(vocab)
    local, fan = (16, 4) if device.is_cpu else (256, 16)
    kernel = device.kernel(
        "top_logprobs",
        constants={
            "LOCAL": local,
            "CHUNK": form.chunk,
            "FAN": fan,
            "MAX_CHUNKS": max(64, 1 << (chunks - 1).bit_length()),  # one pipeline serves many vocabularies
        },
    )
    program.dispatch(
        kernel,
        lines,
        {
            "logits": logits, "logit_rows": logit_rows, "partials": partials, "top": top, "lse": lse,
            "vocab": vocab, "stride": stride, "count": count, "chunks": chunks,
        },
        reads=[
            logits.range(0, lines * stride * 4), logit_rows.range(0, lines * 4), partials.range(0, lines * chunks * 16),
        ],
        writes=[top.range(0, lines * count * 8), lse.range(0, lines * 4)],
        label=f"top {count} log-probabilities",
        flops=lines * (chunks + count * form.chunk),
        nbytes=lines * (chunks * 16 + (count - 1) * form.chunk * 4 + count * 8),
    )  # fmt: skip


def padded(logits: np.ndarray) -> np.ndarray:
    """float32 logits [L, vocab] with each line filled up with NaN to a multiple of 4."""
    if logits.ndim != 2 or 0 in logits.shape:
        raise ParameterError(f"logits of shape {logits.shape} are not [lines, vocabulary]")
    wide = np.full((logits.shape[0], -(-logits.shape[1] // 4) * 4), np.nan, np.float32)
    wide[:, : logits.shape[1]] = logits
    return wide


def top_logprobs(device: Device, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run once on logits [L, vocab]: (ids uint32 [L, count], log-probabilities float32 [L, count], lse float32 [L])."""
    wide = padded(logits)
    lines, vocab = logits.shape
    with device.pool("top_logprobs") as pool:
        source = pool.buffer(wide)
        rows = pool.buffer(np.arange(lines, dtype=np.uint32))
        partials = pool.buffer(partials_bytes(device, lines, vocab))
        top, lse = pool.buffer(lines * max(count, 1) * 8), pool.buffer(lines * 4)
        program = device.program("top_logprobs")
        record(
            program, logits=source, logit_rows=rows, partials=partials, top=top, lse=lse,
            lines=lines, vocab=vocab, stride=wide.shape[1], count=count,
        )  # fmt: skip
        program.run()
        if device.poison:
            pool.check_guards()
        program.close()
        pairs = top.download(np.uint32, (lines, count, 2))
        return pairs[..., 0].copy(), pairs[..., 1].copy().view(np.float32), lse.download(np.float32, (lines,))
