"""Which device is chosen, what LABKIT_* switch, and how a device opens, closes, is lost, and serves many threads."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_kernels import ChangedDriver

import labkit.vulkan.device as device_module
from labkit.errors import DeviceError, OutOfDeviceMemory, ParameterError
from labkit.ops.add import add
from labkit.vulkan import program as program_module
from labkit.vulkan.device import OPTIONAL, Device, DeviceInfo, list_devices, select

pytestmark = pytest.mark.quick


def info(index: int, name: str, kind: str, **changes: Any) -> DeviceInfo:
    made = DeviceInfo(
        index=index, name=name, type=kind, vendor_id=0x1002, device_id=1, uuid="00", api_version="1.3.0",
        driver_name="d", driver_info="i", driver_version=1, memory_bytes=1 << 33, subgroup_size=32, subgroup_min=32,
        subgroup_max=64, max_workgroup_invocations=1024, max_workgroup_size=(1024, 1024, 64), max_grid=(65535,) * 3,
        max_shared_bytes=32768, max_push_bytes=128, max_storage_range_bytes=1 << 30, max_allocation_bytes=1 << 31,
        timestamp_period_ns=1.0, timestamp_bits=64, features=(), extensions=(),
    )  # fmt: skip
    return replace(made, **changes)


CPU = info(0, "llvmpipe (LLVM 15)", "cpu")
INTEGRATED = info(1, "Radeon 780M Graphics", "integrated")
DISCRETE = info(2, "Radeon RX 7900 XTX", "discrete")
VIRTUAL = info(3, "virtio-gpu venus", "virtual")
SECOND = info(4, "Radeon RX 6400", "discrete")
BROKEN = info(5, "Radeon HD 5450", "discrete", usable=False, reason="it lacks bufferDeviceAddress")
ALL = [CPU, INTEGRATED, DISCRETE, VIRTUAL, SECOND, BROKEN]


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        (ALL, DISCRETE),
        ([SECOND, DISCRETE], DISCRETE),  # of one kind the first in the loader's order
        ([CPU, VIRTUAL, INTEGRATED], INTEGRATED),
        ([CPU, VIRTUAL], VIRTUAL),
        ([CPU], CPU),
        ([BROKEN, CPU], CPU),
        ([CPU, info(6, "other", "other")], info(6, "other", "other")),
    ],
)
@pytest.mark.parametrize("selector", [None, "", "  "])
def test_the_best_is_discrete_then_integrated_then_virtual_then_cpu(devices, chosen, selector):
    assert select(devices, selector) == chosen


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (0, CPU), (3, VIRTUAL), ("1", INTEGRATED), (" 4 ", SECOND), ("780m", INTEGRATED), ("RADEON", DISCRETE),
        ("llvm", CPU), ("cpu", CPU), ("GPU", DISCRETE), ("rx 6400", SECOND),
    ],
)  # fmt: skip
def test_a_device_is_meant_by_index_part_of_its_name_or_kind(selector, chosen):
    assert select(ALL, selector) is chosen


@pytest.mark.parametrize("selector", [9, -1, "9", "780", "-1", "--5", "²", "nvidia", "gpu 7"])
def test_a_selector_that_fits_nothing_lists_what_there_is(selector):
    with pytest.raises(ParameterError) as caught:
        select([CPU, INTEGRATED], selector)
    assert str(caught.value) == (
        f"no Vulkan device matches {selector!r}; there are 0: llvmpipe (LLVM 15) (cpu); 1: Radeon 780M Graphics (integrated)"
    )


@pytest.mark.parametrize("selector", [5, "hd 5450"])
def test_an_unusable_device_that_was_asked_for_says_why(selector):
    with pytest.raises(DeviceError, match=r"^Radeon HD 5450 cannot be used since it lacks bufferDeviceAddress$"):
        select(ALL, selector)


def test_asking_for_the_kind_passes_over_unusable_devices():
    assert select([BROKEN, INTEGRATED], "gpu") is INTEGRATED
    assert select([BROKEN, INTEGRATED], "radeon") is INTEGRATED
    with pytest.raises(DeviceError, match=r"since it lacks"):
        select([BROKEN, CPU], "gpu")
    with pytest.raises(DeviceError, match=r"no usable Vulkan device: Radeon HD 5450 cannot be used since"):
        select([BROKEN], None)


def test_without_any_device_the_remedy_is_named():
    with pytest.raises(DeviceError, match=r"no Vulkan device was found: install a driver \(mesa-vulkan-drivers"):
        select([], None)


def test_the_environment_names_the_device_when_the_caller_does_not(monkeypatch):
    monkeypatch.setenv("LABKIT_DEVICE", "no such card")
    with pytest.raises(ParameterError, match=r"no Vulkan device matches 'no such card'"):
        Device()
    with Device(0) as opened:  # what the caller says comes first
        assert opened.info.index == 0
    monkeypatch.setenv("LABKIT_DEVICE", "0")
    with Device() as opened:
        assert opened.info.index == 0


@pytest.mark.parametrize("feature", OPTIONAL)
def test_an_optional_feature_can_be_switched_off(monkeypatch, feature):
    monkeypatch.setenv("LABKIT_DISABLE", f" {feature} ,")
    assert all(feature not in found.features for found in list_devices())


def test_switching_off_something_unknown_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("LABKIT_DISABLE", "fp16,tensors,bufferDeviceAddress")
    with pytest.raises(
        ParameterError, match=r"LABKIT_DISABLE names bufferDeviceAddress, tensors, which is not one of fp"
    ):
        list_devices()


def test_a_device_without_a_needed_feature_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setitem(device_module.REQUIRED, "quantumEntanglement", "kernels are in two places")
    found = list_devices()
    assert found
    assert not any(each.usable for each in found)
    assert found[0].reason == "it lacks quantumEntanglement (kernels are in two places)"
    with pytest.raises(DeviceError, match=r"quantumEntanglement"):
        Device(0)


def test_what_the_driver_says_is_plausible(device):
    facts = device.describe()
    assert facts["name"] == device.name
    assert facts["subgroup_min"] <= facts["subgroup_size"] <= facts["subgroup_max"]
    assert facts["max_workgroup_invocations"] >= 128  # what Vulkan asks of every device
    assert facts["max_shared_bytes"] >= 16384
    assert facts["max_push_bytes"] >= 128
    assert min(facts["max_grid"]) >= 65535
    assert facts["memory_bytes"] > 1 << 28
    assert len(facts["uuid"]) == 32
    assert not {"extensions", "usable", "reason", "index"} & set(facts)


def test_names_are_escaped_in_the_notebook(device, monkeypatch):
    monkeypatch.setattr(device, "info", replace(device.info, name="<script>alert(1)</script>"))
    assert "<script>" not in device._repr_html_()
    assert "&lt;script&gt;" in device._repr_html_()


def test_closing_twice_is_fine_and_use_after_it_is_one_line():
    with Device(poison=True) as opened:
        pool, program = opened.pool(), opened.program("idle")
        program.record()
    opened.close()
    assert opened.closed
    program.close()
    pool.close()
    for use in (
        opened.pool, opened.program, opened.save_pipeline_cache, program.submit, program.gpu_seconds,
        lambda: opened.buffer(4), lambda: opened.kernel("add"), lambda: pool.buffer(4), lambda: opened.alive(),
    ):  # fmt: skip
        with pytest.raises(DeviceError, match=r"closed") as caught:
            use()
        assert "\n" not in str(caught.value)


def test_a_device_closed_with_work_in_flight_waits_for_it():
    opened = Device(poison=False)
    target = opened.buffer(64 << 20)
    program = opened.program()
    program.fill(target, 7)
    program.submit(4)  # nobody waits
    opened.close()


def test_twenty_devices_one_after_another_leave_no_memory_behind():
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def once() -> None:
        with Device(poison=False) as opened:
            opened.buffer(8 << 20).fill(1)

    for _ in range(5):
        once()
    before = resident()
    for _ in range(20):
        once()
    assert resident() - before < 64 << 20  # 20 buffers of 8 MiB would show


def test_threads_submit_at_the_same_time_and_each_gets_its_own_result(device):
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(10):
            a, b = rng.standard_normal((2, 3, 64)).astype(np.float32)
            try:
                if not np.array_equal(add(device, a, b), a + b):
                    wrong.append(f"thread {number} got another's numbers")
            except Exception as error:
                wrong.append(f"thread {number}: {error!r}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_more_submits_in_flight_than_fences_all_finish(device):
    with device.pool() as pool:
        target = pool.buffer(4 << 20)
        program = device.program()
        program.fill(target, 3)
        flying = [program.submit() for _ in range(40)]
        for submission in reversed(flying):
            submission.wait()
            submission.wait()
        assert np.all(target.download(np.uint32) == 3)
        program.close()


def change_driver(opened: Device, **changes: Any) -> None:
    """Make driver calls of one device answer with other result codes."""
    opened.lib = ChangedDriver(opened.lib, **changes)


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
def test_a_lost_device_is_one_line_then_and_later_and_still_closes(call):
    opened = Device(poison=False)
    program = opened.program()
    program.fill(opened.buffer(64), 1)
    program.record()
    change_driver(opened, **{call: lambda *_: -4})
    with pytest.raises(DeviceError, match=r"the device was lost \(VK_ERROR_DEVICE_LOST\); restart") as caught:
        program.submit().wait()
    assert "\n" not in str(caught.value)
    assert opened.lost
    assert opened.closed
    for use in (program.submit, opened.program, lambda: opened.kernel("add"), lambda: opened.buffer(4)):
        with pytest.raises(DeviceError, match=r"was lost earlier in this process"):
            use()
    opened.close()


def long_work(opened: Device):
    """A program that keeps a driver on the CPU busy long after it was submitted, over a buffer of its own."""
    pool = opened.pool("long")
    program = opened.program("long")
    target = pool.buffer(16 << 20)
    for _ in range(64):
        program.fill(target, 1)
    return pool, program


@pytest.mark.parametrize("ends", ["lost", "hung"])
def test_what_still_runs_keeps_what_it_uses(monkeypatch, ends):
    """A loss that only this process believes in, and a submit given up: the work goes on and nothing is freed under it."""
    for _ in range(3):
        opened = Device(poison=False)
        pool, program = long_work(opened)
        if ends == "hung":
            monkeypatch.setattr(program_module, "GPU_TIMEOUT_S", 0.0)
        change_driver(opened, vkWaitForFences=lambda *_: -4 if ends == "lost" else 2)
        with pytest.raises(DeviceError, match="lost" if ends == "lost" else "did not finish"):
            program.submit().wait()
        assert (opened.lost, opened.hung) == (True, ends == "hung")
        pool.close()
        opened.close()
        opened.close()
        assert opened.closed
        assert (opened.handle is None) == (ends == "lost")


def test_a_submit_that_never_ends_is_reported_and_not_waited_for(monkeypatch):
    opened = Device(poison=False)
    program = opened.program()
    program.fill(opened.buffer(64), 1)
    program.submit().wait()
    monkeypatch.setattr(program_module, "GPU_TIMEOUT_S", 0.05)
    change_driver(opened, vkWaitForFences=lambda *_: 2)
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"did not finish a submit within 0 s; restart the process"):
        program.submit().wait()
    assert time.monotonic() - began < 2
    assert opened.lost
    opened.close()


def test_a_submit_refused_for_memory_leaves_the_device_usable():
    with Device(poison=False) as opened:
        program = opened.program()
        target = opened.buffer(64)
        program.fill(target, 9)
        for _ in range(20):
            program.submit().wait()  # every fence is in use
        real = opened.lib
        change_driver(opened, vkQueueSubmit=lambda *_: -2)
        for _ in range(20):
            with pytest.raises(OutOfDeviceMemory, match=r"submitting work: the device is out of memory"):
                program.submit()
        opened.lib = real
        began = time.monotonic()
        for _ in range(40):
            program.submit().wait()
        assert time.monotonic() - began < 5  # no fence of a refused submit is waited for
        assert np.all(target.download(np.uint32) == 9)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


SMALL = """
from labkit.vulkan.device import Device
import numpy as np
from labkit.ops.add import add
with Device(0) as device:
    assert add(device, np.ones((1, 4), 'f4'), np.ones((1, 4), 'f4')).tolist() == [[2.0] * 4]
print("fine")
"""


def test_pipelines_are_kept_on_the_disk_and_damage_there_costs_only_time(tmp_path):
    where = {"XDG_CACHE_HOME": str(tmp_path)}
    assert run(SMALL, **where).stdout == "fine\n"
    [kept] = (tmp_path / "labkit" / "pipelines").iterdir()
    assert kept.stat().st_size >= 32  # a header at least
    for damage in (b"rubbish" * 100, kept.read_bytes()[:20]):
        kept.write_bytes(damage)
        done = run(SMALL, **where)
        assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_cache_folder_that_cannot_be_written_costs_only_time(tmp_path):
    (tmp_path / "labkit").write_text("a file where the folder should be")
    done = run(SMALL, XDG_CACHE_HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_validation_asked_for_but_not_installed_is_one_line():
    code = (
        "from labkit.vulkan import raw\nfrom labkit.errors import DeviceError\n"
        "try:\n    raw.instance(); print('installed')\nexcept DeviceError as error:\n    print(error)\n"
    )
    done = run(code, LABKIT_VALIDATE="1")
    assert done.stdout in (
        "installed\n",
        "LABKIT_VALIDATE=1 but VK_LAYER_KHRONOS_validation is not installed: install vulkan-validationlayers or unset it\n",
    )


def test_a_machine_without_a_driver_is_told_what_to_install(tmp_path):
    code = (
        "from labkit.vulkan.device import Device\nfrom labkit.errors import DeviceError\n"
        "try:\n    Device('cpu')\nexcept DeviceError as error:\n    print(error)\n"
    )
    done = run(code, VK_DRIVER_FILES=str(tmp_path / "none.json"), VK_ICD_FILENAMES=str(tmp_path / "none.json"))
    assert "mesa-vulkan-drivers" in done.stdout
    assert done.stdout.count("\n") == 1
