"""The key/value cache of one layer: pages of positions, found through a table, in float16 or float32."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import ParameterError
from labkit.vulkan.memory import Buffer, Pool

PAGE = 128  # positions a page holds; attention takes a page at a time
ELEMENT: dict[str, np.dtype[Any]] = {"f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}


def cache_bytes(kind: str, pages: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of a layer's keys (its values take as many). Raises ParameterError for an unknown kind or head size."""
    if kind not in ELEMENT:
        raise ParameterError(f"a cache of {kind!r} is not one of {', '.join(ELEMENT)}")
    if pages < 1 or kv_heads < 1 or head_dim < 4 or head_dim % 4:
        raise ParameterError(
            f"a cache of {pages} pages, {kv_heads} heads of {head_dim}: head sizes are multiples of 4, all positive"
        )
    return pages * kv_heads * PAGE * head_dim * int(ELEMENT[kind].itemsize)


@dataclass(frozen=True)
class KVCache:
    """One layer's cache. k, v: [pages][kv_heads][PAGE][head_dim] of `kind`; page_table: uint32 [slots][pages_per_slot].

    Raises ParameterError where a buffer is too small for its shape.
    """

    kind: str
    k: Buffer
    v: Buffer
    page_table: Buffer
    pages: int
    pages_per_slot: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        need = cache_bytes(self.kind, self.pages, self.kv_heads, self.head_dim)
        for buffer in (self.k, self.v):
            if buffer.nbytes < need:
                raise ParameterError(f"{buffer!r} cannot hold {self.pages} pages, which need {need} bytes")
        if self.pages_per_slot < 1 or self.page_table.nbytes < 4 * self.pages_per_slot:
            raise ParameterError(f"{self.page_table!r} does not hold {self.pages_per_slot} pages a slot")

    @property
    def context(self) -> int:
        """Positions a slot can hold."""
        return self.pages_per_slot * PAGE

    @property
    def position_bytes(self) -> int:
        """Bytes of the key (or the value) of one position, all heads."""
        return self.kv_heads * self.head_dim * int(ELEMENT[self.kind].itemsize)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Host copies of k and v, [pages, kv_heads, PAGE, head_dim]."""
        shape = (self.pages, self.kv_heads, PAGE, self.head_dim)
        return self.k.download(ELEMENT[self.kind], shape), self.v.download(ELEMENT[self.kind], shape)


def upload(pool: Pool, k: np.ndarray, v: np.ndarray, page_table: np.ndarray) -> KVCache:
    """A cache holding the arrays k, v [pages, kv_heads, PAGE, head_dim] (float16 or float32) and the page table."""
    kinds = {dtype: kind for kind, dtype in ELEMENT.items()}
    if k.shape != v.shape or k.dtype != v.dtype or k.ndim != 4 or k.shape[2] != PAGE or k.dtype not in kinds:
        raise ParameterError(f"k {k.dtype}{k.shape} and v {v.dtype}{v.shape} are not float [pages, heads, {PAGE}, dim]")
    table = np.ascontiguousarray(page_table, np.uint32)
    if table.ndim != 2 or table.size == 0 or int(table.max()) >= k.shape[0]:
        raise ParameterError(f"a page table of shape {table.shape} does not point into {k.shape[0]} pages")
    return KVCache(
        kinds[k.dtype], pool.buffer(k, label="keys"), pool.buffer(v, label="values"), pool.buffer(table, label="pages"),
        k.shape[0], table.shape[1], k.shape[1], k.shape[3],
    )  # fmt: skip
