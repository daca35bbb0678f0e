"""The Vulkan loader and instance: raw cffi handles, struct construction, and result codes turned into errors.

Every call goes through the bindings' raw `lib` (about 1 microsecond) and never through their Python wrappers
(3 to 12 microseconds, and `vkGetBufferDeviceAddress` returns the wrong thing there). cffi keeps a struct's memory
alive only as long as its owner, so `Structs` holds every struct it makes until the call that uses it has returned.
"""

import itertools
import os
import threading
from typing import Any

from labkit.errors import DeviceError, OutOfDeviceMemory

API_VERSION_1_2 = (1 << 22) | (2 << 12)
API_VERSION_1_3 = (1 << 22) | (3 << 12)

_lock = threading.Lock()
_state: dict[str, Any] = {}

_RESULTS = {
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    -4: "VK_ERROR_DEVICE_LOST",
    -5: "VK_ERROR_MEMORY_MAP_FAILED",
    -6: "VK_ERROR_LAYER_NOT_PRESENT",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
    -10: "VK_ERROR_TOO_MANY_OBJECTS",
    -13: "VK_ERROR_UNKNOWN",
}
TIMEOUT = 2
NOT_READY = 1
DEVICE_LOST = -4


def bindings() -> tuple[Any, Any]:
    """(ffi, lib) of the `vulkan` package. Raises DeviceError where libvulkan.so.1 is not installed."""
    if "lib" not in _state:
        with _lock:
            if "lib" not in _state:
                try:
                    import vulkan._vulkan as binding
                except OSError as error:
                    raise DeviceError(
                        f"the Vulkan loader libvulkan.so.1 cannot be loaded ({error}): install libvulkan1 (apt), "
                        "vulkan-loader (dnf, conda) or vulkan-icd-loader (pacman); `lab doctor` tells more"
                    ) from None
                _state["ffi"], _state["lib"], _state["constants"] = binding.ffi, binding.lib, binding
    return _state["ffi"], _state["lib"]


def constant(name: str) -> int:
    """The value of an enum constant such as `VK_QUEUE_COMPUTE_BIT`."""
    bindings()
    return int(getattr(_state["constants"], name))


def check(result: int, what: str) -> None:
    """Raise the error that fits a negative VkResult of the call described by `what`."""
    if result >= 0:
        return
    name = _RESULTS.get(result, f"VkResult {result}")
    if result in (-1, -2):
        raise OutOfDeviceMemory(
            f"{what}: the device is out of memory ({name}); close other engines or use smaller ones"
        )
    if result == DEVICE_LOST:
        raise DeviceError(
            f"{what}: the device was lost ({name}); restart the process, and see `dmesg` for the driver's word"
        )
    raise DeviceError(f"{what} failed with {name}; `lab doctor` shows the driver and its features")


class Structs:
    """Makes Vulkan structs and keeps them, and all they point to, alive."""

    def __init__(self) -> None:
        self.ffi, self.lib = bindings()
        self.keep: list[Any] = []

    def new(self, ctype: str, init: Any = None) -> Any:
        """A zeroed or initialised cffi object of `ctype`, kept alive by this holder."""
        made = self.ffi.new(ctype) if init is None else self.ffi.new(ctype, init)
        self.keep.append(made)
        return made

    def struct(self, name: str, stype: str = "", **fields: Any) -> Any:
        """A pointer to a `VkName`; `stype` names its VK_STRUCTURE_TYPE_; str becomes char*, None a null pointer."""
        made = self.new(f"Vk{name} *")
        if stype:
            made.sType = constant(f"VK_STRUCTURE_TYPE_{stype}")
        for key, value in fields.items():
            if isinstance(value, str):
                value = self.new("char[]", value.encode())
            elif value is None:
                value = self.ffi.NULL
            setattr(made, key, value)
        return made

    def chain(self, *structs: Any) -> Any:
        """Link structs through pNext in the order given; returns the first."""
        for head, following in itertools.pairwise(structs):
            head.pNext = self.ffi.cast("void *", following)
        return structs[0]

    def strings(self, names: list[str]) -> Any:
        """A char*[] of names."""
        return self.new("char *[]", [self.new("char[]", n.encode()) for n in names] or [self.ffi.NULL])


def _layers(structs: Structs) -> list[str]:
    if os.environ.get("LABKIT_VALIDATE") != "1":
        return []
    count = structs.new("uint32_t *")
    structs.lib.vkEnumerateInstanceLayerProperties(count, structs.ffi.NULL)
    found = structs.new(f"VkLayerProperties[{max(count[0], 1)}]")
    structs.lib.vkEnumerateInstanceLayerProperties(count, found)
    names = {structs.ffi.string(found[i].layerName).decode() for i in range(count[0])}
    wanted = "VK_LAYER_KHRONOS_validation"
    if wanted not in names:
        raise DeviceError(
            f"LABKIT_VALIDATE=1 but {wanted} is not installed: install vulkan-validationlayers or unset it"
        )
    return [wanted]


def instance() -> Any:
    """The process's VkInstance (made on first use). Raises DeviceError where no driver can be loaded."""
    ffi, lib = bindings()
    with _lock:
        if "instance" not in _state:
            s = Structs()
            layers = _layers(s)
            app = s.struct("ApplicationInfo", "APPLICATION_INFO", pApplicationName="labkit", apiVersion=API_VERSION_1_3)
            info = s.struct(
                "InstanceCreateInfo",
                "INSTANCE_CREATE_INFO",
                pApplicationInfo=app,
                enabledLayerCount=len(layers),
                ppEnabledLayerNames=s.strings(layers),
            )
            out = s.new("VkInstance *")
            result = lib.vkCreateInstance(info, ffi.NULL, out)
            if result == -9:
                raise DeviceError(
                    "no Vulkan driver is installed (VK_ERROR_INCOMPATIBLE_DRIVER): install mesa-vulkan-drivers "
                    "(apt, dnf) or your vendor's driver; `lab doctor` tells more"
                )
            check(result, "creating the Vulkan instance")
            _state["instance"] = out[0]
    return _state["instance"]


def physical_devices() -> list[Any]:
    """The VkPhysicalDevice handles of the instance; an empty list where no driver offers one."""
    s = Structs()
    count = s.new("uint32_t *")
    result = s.lib.vkEnumeratePhysicalDevices(instance(), count, s.ffi.NULL)
    if result == -3 or count[0] == 0:
        return []
    check(result, "listing Vulkan devices")
    handles = s.ffi.new(f"VkPhysicalDevice[{count[0]}]")
    check(s.lib.vkEnumeratePhysicalDevices(instance(), count, handles), "listing Vulkan devices")
    return [handles[i] for i in range(count[0])]
