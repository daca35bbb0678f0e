"""linear at each matrix of a model: joined as the engine joins them, with the epilogue it has there."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from labkit.engine.weights import used_by
from labkit.measure.ops_bench.cases import Case, Work, nmse, operation, sample_rows
from labkit.models.random_gguf import noise
from labkit.models.shapes import AnyModel
from labkit.models.tensor_types import TensorType
from labkit.ops import linear
from labkit.ops.linear_cuts import Cut, choose
from labkit.ops.rounding import place, rounding_for, scratch_bytes
from labkit.ops.rounding import record as record_rounding
from labkit.ops.weights import pack
from labkit.vulkan.memory import Buffer, Pool
from labkit.vulkan.program import Program

PERIOD = 256  # different rows a matrix has; they repeat, so that a few products check all columns
HEAD_ROWS = 64  # only rows that want logits pass the output projection
# what rounding costs in normalised mean squared error, with room: int8 blocks, float16, none
LIMITS = {"int8": 3e-4, "float16": 2e-6}
LIMIT = 1e-7


@dataclass(frozen=True)
class Shape:
    """A matrix of the model: its part in a layer, rows, elements of a row, file type and epilogue."""

    name: str
    n: int
    k: int
    kind: TensorType
    epilogue: str

    @property
    def most_rows(self) -> int:
        """Activation rows it ever sees."""
        return HEAD_ROWS if self.name == "head" else 1 << 30


def shapes_of(model: AnyModel) -> list[Shape]:
    """The different matrices of one layer, and the output projection."""
    used, config = used_by(model.config), model.config
    found: dict[tuple[int, int, str, str], Shape] = {}

    def add(name: str, names: tuple[str, ...], epilogue: str) -> None:
        tensors = [model.tensors[each] for each in names]
        for kind in {tensor.type.name: tensor.type for tensor in tensors}.values():
            same = [tensor for tensor in tensors if tensor.type is kind]
            n, k = sum(tensor.shape[0] for tensor in same), same[0].shape[1]
            found.setdefault((n, k, kind.name, epilogue), Shape(name, n, k, kind, epilogue))

    for names in used.linears:
        head = model.tensors[names[0]].shape[0] == config.vocab
        add("head" if head else _part(names), names, "store" if head or len(names) > 1 else "add")
    for gate, up in used.swiglus:
        same = model.tensors[gate].type is model.tensors[up].type
        add("gate_up" if same else _part((gate,)), (gate, up), "swiglu" if same else "store")
    return list(found.values())


def _part(names: tuple[str, ...]) -> str:
    """`blk.0.attn_q.weight`, `blk.0.attn_k.weight` → `q_k`."""
    parts = [name.split(".")[-2].removeprefix("ffn_") for name in names]
    return parts[0] if len(parts) == 1 else "_".join(part.removeprefix("attn_") for part in parts)


@operation("linear")
def linear_cases(work: Work) -> Iterator[Case]:
    """Each matrix with each number of rows; the matrix and its copies stay while the rows change."""
    for shape in shapes_of(work.model):
        rows_here = [rows for rows in work.rows if rows <= shape.most_rows]
        if not rows_here:
            continue
        with work.device.pool(f"bench {shape.name}") as pool:
            matrices, base = make_matrices(work, pool, shape)
            for rows in rows_here:
                with work.device.pool(f"bench {shape.name} x {rows}") as space:
                    yield make_case(work, space, shape, matrices, base, rows)


def make_matrices(work: Work, pool: Pool, shape: Shape) -> tuple[list[linear.Matrix], np.ndarray]:
    """Copies of a random matrix, and the rows it is made of [period, k] as float32: row i is base[i % period]."""
    period = min(PERIOD, -(-shape.n // 16) * 16)
    row_bytes = shape.kind.row_bytes(shape.k)
    raw = noise(shape.kind, period * row_bytes + shape.kind.block_bytes)[: period * row_bytes].reshape(
        period, row_bytes
    )
    packed = pack(raw, shape.kind.name, shape.k)
    tiles, whole = -(-shape.n // 16), period // 16

    def spread(plane: np.ndarray | None) -> np.ndarray | None:
        """The plane of `period` rows, again and again, up to the tiles of n rows."""
        if plane is None:
            return None
        return np.resize(plane.reshape(whole, -1), (tiles, plane.size // whole)).reshape(-1)

    codes = spread(packed.codes)
    assert codes is not None
    full = replace(packed, n=shape.n, codes=codes, scales=spread(packed.scales))
    count = work.copies(full.nbytes)
    return [linear.upload(pool, full, shape.name) for _ in range(count)], shape.kind.dequantise(raw)


def make_case(
    work: Work,
    pool: Pool,
    shape: Shape,
    matrices: list[linear.Matrix],
    base: np.ndarray,
    rows: int,
    cut: Cut | None = None,
) -> Case:
    """The case of one matrix over `rows` activation rows, rounded beforehand where the cut wants that.

    `cut`: the device's own choice when left out."""
    device, exact, swiglu = work.device, work.exact, shape.epilogue == "swiglu"
    first = matrices[0]
    width = -(-shape.n // 4) * 4 // (2 if swiglu else 1)
    x = np.random.default_rng(rows).standard_normal((rows, shape.k), np.float32)
    source, target = pool.buffer(x), pool.buffer(rows * width * 4).fill(0)
    scratch = pool.buffer(scratch_bytes(rows, shape.k))
    chosen, _ = choose(device, first.layout, rows, shape.n, shape.k, exact=exact, swiglu=swiglu)
    wanted = rounding_for(cut or chosen, first.layout)
    rounded = None
    if wanted is not None:
        rounded = place(scratch, wanted, rows, shape.k)
        program = device.program("rounding")
        record_rounding(program, source.range(), rounded, x_stride=shape.k, label=shape.name)
        program.submit().wait()
        program.close()

    def record(program: Program, i: int) -> None:
        linear.record(
            program, matrices[i], source, target, rows=rows, x_stride=shape.k, y_stride=width, epilogue=shape.epilogue,
            exact=exact, scratch=scratch, rounded=rounded, cut=cut,
        )  # fmt: skip

    def check() -> tuple[float, float]:
        seen = sample_rows(rows)
        got = _rows_of(target, seen, rows, width)
        want = _expected(x[seen], base, shape)
        return nmse(got[:, : want.shape[1]], want), LIMIT if wanted is None else LIMITS.get(wanted.kind, 1e-3)

    nbytes = first.nbytes + rows * (shape.k + width) * 4
    knobs = {"matrix": shape.name, "n": shape.n, "k": shape.k, "layout": first.layout, "rows": rows}
    return Case("linear", knobs, record, check, len(matrices), 2.0 * rows * shape.n * shape.k, nbytes)


def _expected(x: np.ndarray, base: np.ndarray, shape: Shape) -> np.ndarray:
    """What the sampled rows of the result must be: products with the period, spread over all columns."""
    part = x.astype(np.float64) @ base.astype(np.float64).T
    full: np.ndarray = part[:, np.arange(shape.n) % len(base)]
    if shape.epilogue != "swiglu":
        return full
    gate, up = full[:, 0::2], full[:, 1::2]
    gated: np.ndarray = gate / (1 + np.exp(-np.clip(gate, -700, None))) * up
    return gated


def _rows_of(buffer: Buffer, wanted: list[int], rows: int, width: int) -> np.ndarray:
    taken: np.ndarray = buffer.download(np.float32, (rows, width))[wanted]
    return taken
