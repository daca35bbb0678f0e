"""Vulkan devices: what the machine has, which one is best, and the open `Device` that memory and programs hang off."""

import collections
import contextlib
import functools
import itertools
import os
import threading
import weakref
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import DeviceError, ParameterError
from labkit.vulkan import raw
from labkit.vulkan.host import refuse_quiet_cpu

if TYPE_CHECKING:
    from labkit.vulkan.hardware import MatrixShape
    from labkit.vulkan.kernel import Kernel
    from labkit.vulkan.memory import Buffer, Pool
    from labkit.vulkan.program import Program

_numbers = itertools.count(1)  # of the devices that this process opened
_TYPES = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
_PREFERENCE = {"discrete": 0, "integrated": 1, "virtual": 2, "other": 3, "cpu": 4}
# feature bit -> why labkit needs it; without one of these a device is listed but not usable
REQUIRED = {
    "bufferDeviceAddress": "kernels address buffers by pointer",
    "subgroupArithmetic": "reductions use subgroups",
}
# optional feature -> the switch of LABKIT_DISABLE that turns it off
OPTIONAL = (
    "fp16", "int8", "int64", "storage16", "storage8", "intdot", "coopmat", "memory_model", "subgroup_size_control",
    "executable_statistics",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceInfo:
    """What a driver says of one device. Sizes are in bytes; `features` holds labkit's own names."""

    index: int
    name: str
    type: str
    vendor_id: int
    device_id: int
    uuid: str
    api_version: str
    driver_name: str
    driver_info: str
    driver_version: int
    memory_bytes: int
    subgroup_size: int
    subgroup_min: int
    subgroup_max: int
    max_workgroup_invocations: int
    max_workgroup_size: tuple[int, int, int]
    max_grid: tuple[int, int, int]
    max_shared_bytes: int
    max_push_bytes: int
    max_storage_range_bytes: int
    max_allocation_bytes: int
    timestamp_period_ns: float
    timestamp_bits: int
    features: tuple[str, ...]
    extensions: tuple[str, ...] = field(repr=False)
    usable: bool = True
    reason: str = ""

    @property
    def is_cpu(self) -> bool:
        """True for a software driver such as lavapipe."""
        return self.type == "cpu"


def _version(number: int) -> str:
    return f"{number >> 22}.{(number >> 12) & 0x3FF}.{number & 0xFFF}"


def _extensions(s: raw.Structs, physical: Any) -> set[str]:
    count = s.new("uint32_t *")
    s.lib.vkEnumerateDeviceExtensionProperties(physical, s.ffi.NULL, count, s.ffi.NULL)
    found = s.new(f"VkExtensionProperties[{max(count[0], 1)}]")
    s.lib.vkEnumerateDeviceExtensionProperties(physical, s.ffi.NULL, count, found)
    return {s.ffi.string(found[i].extensionName).decode() for i in range(count[0])}


def _feature_structs(s: raw.Structs, extensions: set[str], api: int) -> dict[str, Any]:
    """The feature structs this driver knows, chained behind a VkPhysicalDeviceFeatures2 under key "base"."""
    made = {"base": s.struct("PhysicalDeviceFeatures2", "PHYSICAL_DEVICE_FEATURES_2")}
    made["11"] = s.struct("PhysicalDeviceVulkan11Features", "PHYSICAL_DEVICE_VULKAN_1_1_FEATURES")
    made["12"] = s.struct("PhysicalDeviceVulkan12Features", "PHYSICAL_DEVICE_VULKAN_1_2_FEATURES")
    if api >= raw.API_VERSION_1_3:
        made["13"] = s.struct("PhysicalDeviceVulkan13Features", "PHYSICAL_DEVICE_VULKAN_1_3_FEATURES")
    else:
        if "VK_EXT_subgroup_size_control" in extensions:
            made["size"] = s.struct(
                "PhysicalDeviceSubgroupSizeControlFeatures", "PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES"
            )
        if "VK_KHR_shader_integer_dot_product" in extensions:
            made["dot"] = s.struct(
                "PhysicalDeviceShaderIntegerDotProductFeatures", "PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES"
            )
    if "VK_KHR_cooperative_matrix" in extensions:
        made["coopmat"] = s.struct(
            "PhysicalDeviceCooperativeMatrixFeaturesKHR", "PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR"
        )
    if "VK_KHR_pipeline_executable_properties" in extensions:
        made["exec"] = s.struct(
            "PhysicalDevicePipelineExecutablePropertiesFeaturesKHR",
            "PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR",
        )
    s.chain(*made.values())
    return made


def _features(bits: dict[str, Any], subgroup_operations: int) -> set[str]:
    has = {
        "fp16": bits["12"].shaderFloat16,
        "int8": bits["12"].shaderInt8,
        "storage16": bits["11"].storageBuffer16BitAccess,
        "storage8": bits["12"].storageBuffer8BitAccess,
        "bufferDeviceAddress": bits["12"].bufferDeviceAddress,
        "memory_model": bits["12"].vulkanMemoryModel,
        "int64": bits["base"].features.shaderInt64,
        "subgroupArithmetic": subgroup_operations & 0x4,
        "intdot": bits["13"].shaderIntegerDotProduct
        if "13" in bits
        else "dot" in bits and bits["dot"].shaderIntegerDotProduct,
        "subgroup_size_control": bits["13"].subgroupSizeControl
        if "13" in bits
        else "size" in bits and bits["size"].subgroupSizeControl,
        "coopmat": "coopmat" in bits and bits["coopmat"].cooperativeMatrix,
        "executable_statistics": "exec" in bits and bits["exec"].pipelineExecutableInfo,
    }
    off = {name.strip() for name in os.environ.get("LABKIT_DISABLE", "").split(",") if name.strip()}
    unknown = off - set(OPTIONAL)
    if unknown:
        raise ParameterError(
            f"LABKIT_DISABLE names {', '.join(sorted(unknown))}, which is not one of {', '.join(OPTIONAL)}"
        )
    return {name for name, on in has.items() if on} - off


def _inspect(index: int, physical: Any) -> DeviceInfo:
    s = raw.Structs()
    base = s.struct("PhysicalDeviceProperties2", "PHYSICAL_DEVICE_PROPERTIES_2")
    subgroup = s.struct("PhysicalDeviceSubgroupProperties", "PHYSICAL_DEVICE_SUBGROUP_PROPERTIES")
    driver = s.struct("PhysicalDeviceDriverProperties", "PHYSICAL_DEVICE_DRIVER_PROPERTIES")
    ident = s.struct("PhysicalDeviceIDProperties", "PHYSICAL_DEVICE_ID_PROPERTIES")
    maintenance = s.struct("PhysicalDeviceMaintenance3Properties", "PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES")
    extensions = _extensions(s, physical)
    chain = [base, subgroup, driver, ident, maintenance]
    plain = s.new("VkPhysicalDeviceProperties *")
    s.lib.vkGetPhysicalDeviceProperties(physical, plain)
    api = plain.apiVersion
    size = None
    if api >= raw.API_VERSION_1_3 or "VK_EXT_subgroup_size_control" in extensions:
        size = s.struct(
            "PhysicalDeviceSubgroupSizeControlProperties", "PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES"
        )
        chain.append(size)
    name = s.ffi.string(plain.deviceName).decode(errors="replace")
    kind = _TYPES.get(plain.deviceType, "other")
    limits = plain.limits
    common = {
        "index": index,
        "name": name,
        "type": kind,
        "vendor_id": plain.vendorID,
        "device_id": plain.deviceID,
        "api_version": _version(api),
        "driver_version": plain.driverVersion,
        "max_workgroup_invocations": limits.maxComputeWorkGroupInvocations,
        "max_workgroup_size": tuple(limits.maxComputeWorkGroupSize),
        "max_grid": tuple(limits.maxComputeWorkGroupCount),
        "max_shared_bytes": limits.maxComputeSharedMemorySize,
        "max_push_bytes": limits.maxPushConstantsSize,
        "max_storage_range_bytes": limits.maxStorageBufferRange,
        "timestamp_period_ns": limits.timestampPeriod,
        "extensions": tuple(sorted(extensions)),
    }
    if api < raw.API_VERSION_1_2:
        nothing: dict[str, Any] = dict.fromkeys(
            ("memory_bytes", "subgroup_size", "subgroup_min", "subgroup_max", "max_allocation_bytes", "timestamp_bits"),
            0,
        )
        reason = f"its driver speaks Vulkan {_version(api)}; 1.2 is needed"
        return DeviceInfo(
            **common, **nothing, uuid="", driver_name="", driver_info="", features=(), usable=False, reason=reason
        )
    s.chain(*chain)
    s.lib.vkGetPhysicalDeviceProperties2(physical, base)
    bits = _feature_structs(s, extensions, api)
    s.lib.vkGetPhysicalDeviceFeatures2(physical, bits["base"])
    memory = s.new("VkPhysicalDeviceMemoryProperties *")
    s.lib.vkGetPhysicalDeviceMemoryProperties(physical, memory)
    local = [memory.memoryHeaps[i].size for i in range(memory.memoryHeapCount) if memory.memoryHeaps[i].flags & 1]
    features = _features(bits, subgroup.supportedOperations)
    lacking = [f"{need} ({why})" for need, why in REQUIRED.items() if need not in features]
    family = _compute_family(s, physical)
    if family is None:
        lacking.append("a compute queue")
    return DeviceInfo(
        **common,
        uuid=bytes(ident.deviceUUID).hex(),
        driver_name=s.ffi.string(driver.driverName).decode(errors="replace"),
        driver_info=s.ffi.string(driver.driverInfo).decode(errors="replace"),
        memory_bytes=max(local, default=0),
        subgroup_size=subgroup.subgroupSize,
        subgroup_min=size.minSubgroupSize if size else subgroup.subgroupSize,
        subgroup_max=size.maxSubgroupSize if size else subgroup.subgroupSize,
        max_allocation_bytes=maintenance.maxMemoryAllocationSize,
        timestamp_bits=family[1] if family else 0,
        features=tuple(sorted(features)),
        usable=not lacking,
        reason=f"it lacks {', '.join(lacking)}" if lacking else "",
    )


def _compute_family(s: raw.Structs, physical: Any) -> tuple[int, int] | None:
    """(index, timestamp bits) of the queue family to use: compute beside graphics first, any compute else."""
    count = s.new("uint32_t *")
    s.lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, s.ffi.NULL)
    families = s.new(f"VkQueueFamilyProperties[{max(count[0], 1)}]")
    s.lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, families)
    able = [i for i in range(count[0]) if families[i].queueFlags & 2 and families[i].queueCount > 0]
    if not able:
        return None
    best = min(able, key=lambda i: (not families[i].queueFlags & 1, i))
    return best, families[best].timestampValidBits


def list_devices() -> list[DeviceInfo]:
    """Every Vulkan device here, usable or not, in the loader's order. Raises DeviceError without a loader."""
    return [_inspect(i, handle) for i, handle in enumerate(raw.physical_devices())]


def select(devices: list[DeviceInfo], selector: int | str | None) -> DeviceInfo:
    """The device meant by `selector`: an index, a part of the name, "cpu"/"gpu", or None for the best.

    Best is discrete before integrated before virtual before CPU. Raises DeviceError or ParameterError in one line.
    """
    listing = "; ".join(f"{d.index}: {d.name} ({d.type})" for d in devices) or "none"
    if not devices:
        raise DeviceError(
            "no Vulkan device was found: install a driver (mesa-vulkan-drivers for the CPU); see `lab doctor`"
        )
    chosen: list[DeviceInfo]
    if selector is not None and (isinstance(selector, bool) or not isinstance(selector, int | str)):
        raise ParameterError(f"device {selector!r} is not an index, a part of a name, cpu or gpu")
    if isinstance(selector, str):
        selector = selector.strip()
    if selector is None or selector == "":
        chosen = sorted((d for d in devices if d.usable), key=lambda d: (_PREFERENCE[d.type], d.index))
        if not chosen:
            raise DeviceError(f"no usable Vulkan device: {devices[0].name} cannot be used since {devices[0].reason}")
    elif isinstance(selector, int) or (selector.isascii() and selector.isdigit()):
        chosen = [d for d in devices if d.index == int(selector)]
    else:
        part = selector.lower()
        if part in ("cpu", "gpu"):
            chosen = [d for d in devices if d.is_cpu == (part == "cpu")]
        else:
            chosen = [d for d in devices if part in d.name.lower()]
        chosen.sort(key=lambda d: (not d.usable, _PREFERENCE[d.type], d.index))
    if not chosen:
        raise ParameterError(f"no Vulkan device matches {selector!r}; there are {listing}")
    if not chosen[0].usable:
        raise DeviceError(f"{chosen[0].name} cannot be used since {chosen[0].reason}")
    return chosen[0]


class Device:
    """An open Vulkan device with one compute queue, guarded by a lock so that any thread may call.

    `selector`: index, part of the name, "cpu", "gpu", or None (environment LABKIT_DEVICE, else the best).
    `poison=True` (or LABKIT_POISON=1) fills every new buffer with NaN bit patterns and checks guard words behind it.
    Raises DeviceError where nothing fits, with the devices that exist.
    """

    def __init__(self, selector: int | str | None = None, *, poison: bool | None = None) -> None:
        if selector is None:
            selector = os.environ.get("LABKIT_DEVICE") or None
        devices = list_devices()
        if selector is None:
            refuse_quiet_cpu(devices)
        self.info = select(devices, selector)
        self.poison = os.environ.get("LABKIT_POISON") == "1" if poison is None else poison
        self.features = frozenset(self.info.features)
        self.lock = threading.RLock()
        self.lost = False
        self.hung = False  # a submit did not end in time, and may still run
        self.number = next(_numbers)
        self._s = raw.Structs()
        self.ffi, self.lib = self._s.ffi, self._s.lib
        self.physical = raw.physical_devices()[self.info.index]
        self.handle, self.queue, self.family = self._create()
        self._kernels: dict[Any, Any] = {}
        self._pools: set[Pool] = set()  # what is not closed by itself is freed with the device
        self._made: weakref.WeakSet[Kernel | Program] = weakref.WeakSet()
        self.fences: collections.deque[Any] = collections.deque()
        self.pipeline_cache = self._load_pipeline_cache()
        self.command_pool = self._command_pool()
        self.staging: Any = None
        self._closed = False

    # what it is

    @property
    def origin(self) -> dict[str, int]:
        """Which device of those this process opened it is: its start, for `run.measure(start=...)`."""
        return {"device": self.number}

    @property
    def name(self) -> str:
        """The driver's name for the device."""
        return self.info.name

    @property
    def is_cpu(self) -> bool:
        """True on a software driver."""
        return self.info.is_cpu

    def has(self, *features: str) -> bool:
        """Whether every named feature is there and not switched off by LABKIT_DISABLE."""
        return self.features.issuperset(features)

    def describe(self) -> dict[str, Any]:
        """The facts a run record keeps: name, type, ids, driver, API version, limits, features."""
        facts = asdict(self.info)
        for key in ("extensions", "usable", "reason", "index"):
            facts.pop(key)
        return facts

    # opening and closing

    def _create(self) -> tuple[Any, Any, int]:
        s, info = self._s, self.info
        extensions = set(info.extensions)
        api = 0
        plain = s.new("VkPhysicalDeviceProperties *")
        s.lib.vkGetPhysicalDeviceProperties(self.physical, plain)
        api = plain.apiVersion
        known = _feature_structs(s, extensions, api)
        s.lib.vkGetPhysicalDeviceFeatures2(self.physical, known["base"])
        on = _feature_structs(s, extensions, api)
        on["base"].features.shaderInt64 = known["base"].features.shaderInt64
        on["base"].features.shaderInt16 = known["base"].features.shaderInt16
        on["11"].storageBuffer16BitAccess = known["11"].storageBuffer16BitAccess
        for bit in (
            "bufferDeviceAddress", "shaderFloat16", "shaderInt8", "storageBuffer8BitAccess", "vulkanMemoryModel",
            "vulkanMemoryModelDeviceScope", "scalarBlockLayout", "hostQueryReset", "shaderSubgroupExtendedTypes",
        ):  # fmt: skip
            setattr(on["12"], bit, getattr(known["12"], bit))
        if "13" in on:
            for bit in ("subgroupSizeControl", "computeFullSubgroups", "shaderIntegerDotProduct", "maintenance4"):
                setattr(on["13"], bit, getattr(known["13"], bit))
        if "size" in on:
            on["size"].subgroupSizeControl = known["size"].subgroupSizeControl
            on["size"].computeFullSubgroups = known["size"].computeFullSubgroups
        if "dot" in on:
            on["dot"].shaderIntegerDotProduct = known["dot"].shaderIntegerDotProduct
        if "coopmat" in on:
            on["coopmat"].cooperativeMatrix = known["coopmat"].cooperativeMatrix
        if "exec" in on:
            on["exec"].pipelineExecutableInfo = known["exec"].pipelineExecutableInfo
        wanted = [
            name
            for name, key in {
                "VK_EXT_subgroup_size_control": "size",
                "VK_KHR_shader_integer_dot_product": "dot",
                "VK_KHR_cooperative_matrix": "coopmat",
                "VK_KHR_pipeline_executable_properties": "exec",
                "VK_EXT_memory_budget": "base",
            }.items()
            if name in extensions and key in on
        ]
        found = _compute_family(s, self.physical)
        if found is None:
            raise DeviceError(f"{info.name} has no compute queue")
        priority = s.new("float[]", [0.5])
        queue_info = s.struct(
            "DeviceQueueCreateInfo", "DEVICE_QUEUE_CREATE_INFO",
            queueFamilyIndex=found[0], queueCount=1, pQueuePriorities=priority,
        )  # fmt: skip
        create = s.struct(
            "DeviceCreateInfo", "DEVICE_CREATE_INFO",
            pNext=on["base"], queueCreateInfoCount=1, pQueueCreateInfos=queue_info,
            enabledExtensionCount=len(wanted), ppEnabledExtensionNames=s.strings(wanted),
        )  # fmt: skip
        device = s.new("VkDevice *")
        raw.check(s.lib.vkCreateDevice(self.physical, create, s.ffi.NULL, device), f"opening {info.name}")
        queue = s.new("VkQueue *")
        s.lib.vkGetDeviceQueue(device[0], found[0], 0, queue)
        return device[0], queue[0], found[0]

    def _command_pool(self) -> Any:
        info = self._s.struct(
            "CommandPoolCreateInfo", "COMMAND_POOL_CREATE_INFO", flags=2, queueFamilyIndex=self.family
        )  # fmt: skip
        out = self._s.new("VkCommandPool *")
        raw.check(self.lib.vkCreateCommandPool(self.handle, info, self.ffi.NULL, out), "creating a command pool")
        return out[0]

    def _cache_path(self) -> Path:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "pipelines"
        return root / f"{self.info.uuid}-{self.info.driver_version:08x}.bin"

    def _load_pipeline_cache(self) -> Any:
        data = b""
        try:
            data = self._cache_path().read_bytes()
        except (OSError, RuntimeError):
            data = b""  # none yet, or a home that cannot be read: pipelines are then built anew
        s = raw.Structs()
        blob = s.new("char[]", data) if data else s.ffi.NULL
        info = s.struct(
            "PipelineCacheCreateInfo", "PIPELINE_CACHE_CREATE_INFO", initialDataSize=len(data), pInitialData=blob
        )
        out = s.new("VkPipelineCache *")
        raw.check(s.lib.vkCreatePipelineCache(self.handle, info, s.ffi.NULL, out), "creating the pipeline cache")
        return out[0]

    def save_pipeline_cache(self) -> None:
        """Write compiled pipelines to the user's cache folder (aside, then renamed); a full disk loses only speed."""
        self.alive()
        size = self.ffi.new("size_t *")
        if self.lib.vkGetPipelineCacheData(self.handle, self.pipeline_cache, size, self.ffi.NULL) < 0 or not size[0]:
            return
        data = self.ffi.new("char[]", size[0])
        if self.lib.vkGetPipelineCacheData(self.handle, self.pipeline_cache, size, data) != 0:
            return
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: nobody knows the home folder
            path = self._cache_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                aside.write_bytes(self.ffi.buffer(data, size[0])[:])
                aside.replace(path)
            finally:
                aside.unlink(missing_ok=True)

    def settle(self) -> bool:
        """Wait until nothing runs; False where a submit may run for ever: what it uses must not be freed under it. Of a lost
        device the wait ends by itself (Vulkan 1.3, 4.2.3)."""
        if self.hung:
            return False
        self.lib.vkDeviceWaitIdle(self.handle)
        return True

    def close(self) -> None:
        """Wait for the queue and free everything made from this device; behind a submit that does not end, nothing is freed
        until the process ends. Closing twice is fine."""
        with self.lock:
            if self._closed:
                return
            if not self.settle():
                self._closed = True
                return
            if not self.lost:
                self.save_pipeline_cache()
            for made in list(self._made):
                made.close()
            self._kernels.clear()
            self._closed = True
            for pool in list(self._pools):
                pool.close()
            for fence in self.fences:
                self.lib.vkDestroyFence(self.handle, fence[0], self.ffi.NULL)
            self.fences.clear()
            self.lib.vkDestroyPipelineCache(self.handle, self.pipeline_cache, self.ffi.NULL)
            self.lib.vkDestroyCommandPool(self.handle, self.command_pool, self.ffi.NULL)
            self.lib.vkDestroyDevice(self.handle, self.ffi.NULL)
            self.handle = None

    @property
    def closed(self) -> bool:
        """True after `close()` or once the device was lost."""
        return self._closed or self.lost

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def alive(self) -> None:
        """Raise DeviceError when the device was closed or lost."""
        if self.lost:
            raise DeviceError(f"{self.name} was lost earlier in this process; restart it (the kernel) to go on")
        if self._closed:
            raise DeviceError(f"{self.name} is closed; open it again with Device()")

    # what hangs off it

    def pool(self, label: str = "") -> "Pool":
        """A new memory pool; closing it frees all its buffers at once."""
        from labkit.vulkan.memory import Pool

        self.alive()
        pool = Pool(self, label)
        with self.lock:
            self._pools.add(pool)
        return pool

    def forget(self, pool: "Pool") -> None:
        """Told by a pool that it is closed."""
        self._pools.discard(pool)

    def keep(self, made: "Kernel | Program") -> None:
        """Told of a kernel or program, so that it is freed before the device is."""
        with self.lock:
            self._made.add(made)

    def buffer(self, content: Any, *, kind: str = "device", label: str = "") -> "Buffer":
        """A buffer in a pool of its own, freed with the device: `content` is a size in bytes or an array to upload."""
        return self.pool(label).buffer(content, kind=kind, label=label)

    def kernel(
        self, op: str, variant: str = "", constants: dict[str, int | float | bool] | None = None, subgroup: int = 0
    ) -> "Kernel":
        """The committed shader `op` (and variant) as a pipeline, made once for each set of specialisation constants."""
        from labkit.vulkan.compile import load_spirv
        from labkit.vulkan.kernel import Kernel

        key = (op, variant, tuple(sorted((constants or {}).items())), subgroup)
        with self.lock:
            self.alive()
            if key not in self._kernels:
                name = f"{op}.{variant}" if variant else op
                self._kernels[key] = Kernel(
                    self, load_spirv(op, variant), name=name, constants=constants, subgroup=subgroup
                )
            kernel: Kernel = self._kernels[key]
            return kernel

    def program(self, label: str = "") -> "Program":
        """An empty program to record dispatches into."""
        from labkit.vulkan.program import Program

        self.alive()
        made = Program(self, label)
        self.keep(made)
        return made

    @functools.cached_property
    def coopmat_size(self) -> int:
        """M = N = K of the largest cube the driver multiplies as float16 into float32 at subgroup scope; 0 for none."""
        return max((s.m for s in self._float16_shapes() if s.m == s.n == s.k and s.m in (8, 16)), default=0)

    @functools.cached_property
    def coopmat_columns(self) -> frozenset[int]:
        """The N that go with M = K = `coopmat_size`."""
        return frozenset(s.n for s in self._float16_shapes() if s.m == s.k == self.coopmat_size)

    def _float16_shapes(self) -> list["MatrixShape"]:
        from labkit.vulkan.hardware import matrix_shapes

        if not self.has("coopmat", "fp16", "storage16"):
            return []
        return [s for s in matrix_shapes(self) if (s.a, s.b, s.c) == ("float16", "float16", "float32")]

    def memory_free(self) -> int | None:
        """Bytes the driver says are still free in device memory, or None where it does not say."""
        if "VK_EXT_memory_budget" not in self.info.extensions:
            return None
        s = raw.Structs()
        base = s.struct("PhysicalDeviceMemoryProperties2", "PHYSICAL_DEVICE_MEMORY_PROPERTIES_2")
        budget = s.struct("PhysicalDeviceMemoryBudgetPropertiesEXT", "PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT")
        s.chain(base, budget)
        s.lib.vkGetPhysicalDeviceMemoryProperties2(self.physical, base)
        heaps = base.memoryProperties
        local = [i for i in range(heaps.memoryHeapCount) if heaps.memoryHeaps[i].flags & 1]
        if not local:
            return None
        big = max(local, key=lambda i: heaps.memoryHeaps[i].size)
        return max(0, int(budget.heapBudget[big]) - int(budget.heapUsage[big]))

    def __repr__(self) -> str:
        i = self.info
        return f"<Device {i.index}: {i.name} ({i.type}), Vulkan {i.api_version}, {i.driver_name} {i.driver_info}>"

    def _repr_html_(self) -> str:
        from labkit.show.device import device_html

        return device_html(self)
