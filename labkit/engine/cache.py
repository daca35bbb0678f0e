"""The KV cache: flat K and V buffers a layer, pages found through a table that starts as the identity."""

from dataclasses import dataclass

import numpy as np

from labkit.errors import OutOfDeviceMemory
from labkit.models.config import ModelConfig
from labkit.models.shapes import AnyModel
from labkit.ops.kv_cache import ELEMENT, PAGE, KVCache, cache_bytes
from labkit.vulkan.device import Device
from labkit.vulkan.memory import Pool

KV_BYTES = {kind: int(dtype.itemsize) for kind, dtype in ELEMENT.items()}


def pages_per_slot(context: int) -> int:
    """Pages that hold `context` positions."""
    return -(-context // PAGE)


def token_bytes(config: ModelConfig, kv: str) -> int:
    """Bytes one token takes in the cache, all layers, K and V."""
    return 2 * config.layers * config.kv_heads * config.head_dim * KV_BYTES[kv]


@dataclass(frozen=True)
class MemoryPlan:
    """What an engine will hold on the device, in bytes."""

    weights: int
    kv_cache: int
    counts: int
    working: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv_cache + self.counts + self.working


def plan_memory(
    model: AnyModel, device: Device, *, slots: int, context: int, kv: str, working: int, loaded: bool
) -> MemoryPlan:
    """The plan for an engine; raises OutOfDeviceMemory, with the arithmetic, when it cannot fit.

    `loaded`: the weights are on the device already and cost nothing more.
    """
    config = model.config
    per_token = token_bytes(config, kv)
    positions = pages_per_slot(context) * PAGE
    plan = MemoryPlan(model.nbytes, slots * positions * per_token, slots * config.vocab * 4, working)
    one_layer = slots * positions * config.kv_heads * config.head_dim * KV_BYTES[kv]
    if one_layer > device.info.max_allocation_bytes:
        fit = int(device.info.max_allocation_bytes // (one_layer // slots))
        raise OutOfDeviceMemory(
            f"the K cache of one layer would take {one_layer:,} bytes and {device.name} allocates at most "
            f"{device.info.max_allocation_bytes:,} at once: use slots={max(fit, 1)} or a shorter context"
        )
    free = device.memory_free()
    need = plan.total - (model.nbytes if loaded else 0)
    if free is not None and need > free:
        room = free - (need - plan.kv_cache)
        fit = int(room // (positions * per_token)) if room > 0 else 0
        remedy = f"slots={fit} would fit" if fit else "the model itself does not fit: take a smaller one"
        raise OutOfDeviceMemory(
            f"{slots} slots of {context} positions need {need:,} bytes ({plan.weights:,} weights, {plan.kv_cache:,} KV cache at "
            f"{per_token:,} a token, {plan.counts + plan.working:,} working) and {device.name} has {free:,} free: {remedy}"
        )
    return plan


def make_cache(pool: Pool, config: ModelConfig, *, slots: int, context: int, kv: str) -> list[KVCache]:
    """One cache a layer, over one page table [slots][pages_per_slot] that starts as the identity."""
    each = pages_per_slot(context)
    pages = slots * each
    nbytes = cache_bytes(kv, pages, config.kv_heads, config.head_dim)
    table = pool.buffer(np.arange(pages, dtype=np.uint32).reshape(slots, each), label="page table")
    return [
        KVCache(
            kv, pool.buffer(nbytes, label=f"K of layer {layer}"), pool.buffer(nbytes, label=f"V of layer {layer}"),
            table, pages, each, config.kv_heads, config.head_dim,
        )
        for layer in range(config.layers)
    ]  # fmt: skip
