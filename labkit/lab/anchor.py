"""The anchor there always is: the read stream, one kernel that no upgrade of ours touches while its SPIR-V is the same."""

from typing import TYPE_CHECKING

from labkit.lab.capture import sha256_file
from labkit.lab.plan import Anchor

if TYPE_CHECKING:
    from labkit.lab.run import Run
    from labkit.vulkan.device import Device

KERNEL = "spv/read_stream.spv"
CELL = {"anchor": "read stream"}


def stream_anchor() -> Anchor:
    """The anchor for `Plan(anchor=...)`: read bandwidth of the lab's read stream, pinned to its SPIR-V's SHA-256. Another
    SPIR-V is another anchor, whose history begins anew.

    Before an upgrade of the driver or of labkit, five completed runs on the card have it in their plan and measure it
    with `measure_anchor`; after it, one more run of the experiment does. `lab compare BEFORE AFTER` then judges the two
    if the anchor of the later lies in the interval that the earlier sessions predict, and says undecided, with the
    reason, if it does not."""
    from labkit.vulkan.compile import shader_root

    return Anchor(metric="read_gb_s", cell=CELL, pinned=f"{KERNEL} {sha256_file(shader_root() / KERNEL)}")


def measure_anchor(run: "Run", device: "Device", block: int) -> float:
    """Measures it now, in `block` of the run, and returns it in GB/s. Call it once a block, or at least three times a run.

    It is no cell of the plan, so it needs no `start`, and no rule or table of the run reads it. DeviceError where the
    kernel reads wrongly."""
    from labkit.measure.roofline import read_bandwidth

    found = read_bandwidth(device, fresh=True).gb_s
    run.measure(CELL, block, read_gb_s=found)
    return found
