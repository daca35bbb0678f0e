"""Mesa's AMD compiler for a card that is not there: RADV has a null device for each family of cards (until Mesa 25).

The family is chosen per process, so each compilation runs apart, shared among a few processes.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from labkit.errors import DeviceError, LabError, ParameterError
from labkit.vulkan import host
from labkit.vulkan.isa import COOPMAT_TARGET, NO_COOPMAT, TARGETS, Statistics, from_answer
from labkit.vulkan.isa_cases import Case

TIMEOUT_S, CASE_S = 120, 5  # a process gets this long, and so much more for each of its cases


def null_device_environment(target: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process in which RADV stands for the card `target`. Raises DeviceError without RADV."""
    environ = dict(os.environ if environ is None else environ)
    manifests = [m.path for m in host.manifests(environ) if m.path.name.startswith("radeon_icd")]
    manifests = [p for p in manifests if "i686" not in p.name] or manifests
    if not manifests:
        raise DeviceError(
            f"compiling for {target} takes Mesa's AMD driver, whose manifest radeon_icd*.json is not here: "
            f"{host.install_commands(environ=environ)}"
        )
    for name in ("VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "LABKIT_DEVICE", "LABKIT_DISABLE", "LABKIT_POISON"):
        environ.pop(name, None)
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [source, environ.get("PYTHONPATH")]))
    return environ | {
        "VK_DRIVER_FILES": str(manifests[0]), "RADV_FORCE_FAMILY": target, "MESA_SHADER_CACHE_DISABLE": "true",
        "PYTHONPATH": path,
    }  # fmt: skip


def compile_for(
    target: str, cases: Sequence[Case], *, text: bool = False, said: Callable[[Statistics], None] | None = None
) -> list[Statistics]:
    """What RADV's compiler makes of each case for the card `target` (RADV's name: gfx1201), in their order.

    Shaders of cooperative matrices are compiled for gfx1151 where the Mesa here does not offer them on the target yet;
    their `target` says so. A case that does not build, or crashes the compiler, has its reason in `error`.
    Raises DeviceError or ParameterError in one line without RADV, without its null device, or for an unknown card.
    """
    found = _compile(target, cases, text, said)
    left = [i for i, one in enumerate(found) if one.error == NO_COOPMAT]
    if left and target in TARGETS and target != COOPMAT_TARGET:
        for i, one in zip(left, _compile(COOPMAT_TARGET, [cases[i] for i in left], text, said), strict=True):
            found[i] = one
    return found


def _compile(
    target: str, cases: Sequence[Case], text: bool, said: Callable[[Statistics], None] | None
) -> list[Statistics]:
    """All cases on one null device, shared among processes, in their order."""
    environment = null_device_environment(target)
    many = max(1, min(os.cpu_count() or 1, 8, len(cases) // 8))
    parts = [range(i, len(cases), many) for i in range(many)]
    with ThreadPoolExecutor(many) as pool:
        made = list(
            pool.map(lambda part: _compile_part(target, environment, [cases[i] for i in part], text, said), parts)
        )
    found: dict[int, Statistics] = {}
    for part, results in zip(parts, made, strict=True):
        found |= dict(zip(part, results, strict=True))
    return [found[i] for i in range(len(cases))]


def _compile_part(
    target: str, environment: dict[str, str], cases: list[Case], text: bool, said: Callable[[Statistics], None] | None
) -> list[Statistics]:
    """Cases in one process, or more where the compiler crashes: that case is an error and the rest go on."""
    made: list[Statistics] = []
    while len(made) < len(cases):
        rest = cases[len(made) :]
        begun, trouble = _work(target, environment, rest, text, made, said)
        if trouble and not begun:
            raise trouble
        if trouble and len(made) < len(cases):
            case = cases[len(made)]
            made.append(from_answer(target, "", case, {"error": str(trouble)}))
    return made


def _work(
    target: str, environment: dict[str, str], cases: list[Case], text: bool, made: list[Statistics],
    said: Callable[[Statistics], None] | None,
) -> tuple[bool, LabError | None]:  # fmt: skip
    """Run one process over `cases`, adding to `made` as it goes: whether it opened the device, and how it failed."""
    command = [sys.executable, "-m", "labkit.vulkan.isa_worker"]
    order = {"text": text, "cases": [_as_order(case) for case in cases]}
    begun = False
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(TIMEOUT_S + CASE_S * len(cases), process.kill)
        clock.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(order))
                process.stdin.close()
            driver = ""
            for line in process.stdout:
                answer = json.loads(line)
                if "trouble" in answer:
                    return False, DeviceError(answer["trouble"])
                if "driver" in answer:
                    begun, driver = True, answer["driver"]
                    continue
                case = cases[int(answer["index"])]
                one = from_answer(target, driver, case, answer)
                made.append(one)
                if said:
                    said(one)
            code = process.wait()
        finally:
            clock.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
    if code == 0:
        return begun, None
    if any("Unknown family" in line for line in lines):
        return False, ParameterError(f"target {target!r} is no card that this RADV knows; try {' or '.join(TARGETS)}")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    last = lines[-1] if lines else "no message"
    return begun, DeviceError(f"RADV's compiler for {target} ended with {how}: {last}")


def _as_order(case: Case) -> dict[str, Any]:
    spirv = base64.b64encode(case.spirv).decode()
    return {"name": case.name, "spirv": spirv, "constants": case.constants, "subgroup": case.wanted.subgroup}
