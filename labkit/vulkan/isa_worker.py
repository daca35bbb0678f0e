"""The process in which RADV stands for a card that is not here: reads an order on stdin, answers a line a kernel.

First {"driver"} once the device is open, or {"trouble"} and no more; then {"index", ...} as `isa.read_case` gives it.
"""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.vulkan import isa
from labkit.vulkan.device import Device, list_devices
from labkit.vulkan.isa_cases import Case
from labkit.vulkan.recording import Wanted


class NullDevice(Device):
    """Keeps no pipelines: all null devices have one id."""

    def _cache_path(self) -> Path:
        raise OSError("a null device keeps no pipelines")


def _say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Work off the order."""
    order = json.load(sys.stdin)
    try:
        if not list_devices():
            _say(
                trouble=f"RADV lists no device for RADV_FORCE_FAMILY={os.environ.get('RADV_FORCE_FAMILY')}: Mesa 26 dropped "
                "the null device that this takes, Mesa 25 has it"
            )
            return
        device = NullDevice(0)
        if not device.has("executable_statistics"):
            _say(trouble=f"{device.name} ({device.info.driver_info}) gives no statistics of its code")
            return
    except LabError as error:
        _say(trouble=str(error))
        return
    _say(driver=f"{device.info.driver_name} {device.info.driver_info}")
    for index, asked in enumerate(order["cases"]):
        wanted = Wanted(asked["name"], "", tuple(sorted(asked["constants"].items())), asked["subgroup"])
        case = Case(wanted, base64.b64decode(asked["spirv"]))
        _say(index=index, **isa.read_case(device, case, text=order["text"]))
    sys.stdout.flush()
    os._exit(0)  # RADV crashes when a null device is destroyed


if __name__ == "__main__":
    main()
