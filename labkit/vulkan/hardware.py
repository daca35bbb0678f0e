"""The cooperative-matrix shapes a driver lists, and where a device sits on the PCI bus: asked for when needed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.vulkan import raw

if TYPE_CHECKING:
    from labkit.vulkan.device import Device

_TYPES = {0: "float16", 1: "float32", 2: "float64", 3: "int8", 4: "int16", 5: "int32", 7: "uint8", 9: "uint32"}
_SUBGROUP = 3  # scope


@dataclass(frozen=True)
class MatrixShape:
    """One product a driver offers a subgroup: a [m, k] of `a` times b [k, n] of `b`, summed in `c`."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str

    @property
    def flops(self) -> int:
        """Operations of one product, an addition and a multiplication each counted."""
        return 2 * self.m * self.n * self.k


def matrix_shapes(device: "Device") -> list[MatrixShape]:
    """What the driver lists at subgroup scope, largest first; nothing where LABKIT_DISABLE turns matrices off."""
    if not device.has("coopmat"):
        return []
    listed: list[MatrixShape] | None = getattr(device, "listed_shapes", None)  # of a device by its description alone
    if listed is not None:
        return listed
    s = raw.Structs()
    name = s.new("char[]", b"vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    found = s.lib.vkGetInstanceProcAddr(raw.instance(), name)
    if found == s.ffi.NULL:
        return []
    query = s.ffi.cast("PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", found)
    count = s.new("uint32_t *")
    query(device.physical, count, s.ffi.NULL)
    given = s.new(f"VkCooperativeMatrixPropertiesKHR[{max(count[0], 1)}]")
    for i in range(count[0]):
        given[i].sType = raw.constant("VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR")
    query(device.physical, count, given)
    shapes = {
        MatrixShape(p.MSize, p.NSize, p.KSize, *(_TYPES.get(kind, "other") for kind in (p.AType, p.BType, p.CType)))
        for p in (given[i] for i in range(count[0]))
        if p.scope == _SUBGROUP and p.ResultType == p.CType and not p.saturatingAccumulation
    }
    return sorted(shapes, key=lambda shape: (-shape.flops, shape.m, shape.n, shape.a, shape.c))


def pci_address(device: "Device") -> str | None:
    """The device's place on the PCI bus, "0000:03:00.0", or None where its driver does not say."""
    if "VK_EXT_pci_bus_info" not in device.info.extensions:
        return None
    s = raw.Structs()
    base = s.struct("PhysicalDeviceProperties2", "PHYSICAL_DEVICE_PROPERTIES_2")
    bus = s.struct("PhysicalDevicePCIBusInfoPropertiesEXT", "PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT")
    s.chain(base, bus)
    s.lib.vkGetPhysicalDeviceProperties2(device.physical, base)
    return f"{bus.pciDomain:04x}:{bus.pciBus:02x}:{bus.pciDevice:02x}.{bus.pciFunction:x}"
