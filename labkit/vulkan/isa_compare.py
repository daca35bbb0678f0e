"""What a change to a shader did to its code: the same cases with an older binary, from git or from a file."""

import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from labkit.errors import LabError, ParameterError
from labkit.vulkan.compile import binary_name, shader_root
from labkit.vulkan.isa import NAMES, Statistics
from labkit.vulkan.isa_cases import Case
from labkit.vulkan.reflect import reflect


def _git(*words: str) -> bytes | None:
    """What git answers about the repository of the shaders, None where it refuses."""
    command = ["git", "-C", str(shader_root()), *words]
    try:
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        raise ParameterError("comparing with an older version takes git, which is not installed") from None
    return done.stdout if done.returncode == 0 else None


def older_binary(source: str, name: str) -> bytes | None:
    """The SPIR-V of shader `name` ("matvec.q4") in a file or at a git revision; None where the revision lacks it.

    Raises ParameterError for what is neither.
    """
    path = Path(source)
    if path.suffix == ".spv" or path.is_file():
        try:
            return path.read_bytes()
        except OSError as error:
            raise ParameterError(f"{source} cannot be read: {error.strerror}") from None
    if _git("rev-parse", "--verify", "--quiet", f"{source}^{{commit}}") is None:
        raise ParameterError(f"{source!r} is no .spv file and no revision of the repository at {shader_root()}")
    return _git("show", f"{source}:./spv/{binary_name(*name.partition('.')[::2])}")


def older_cases(cases: Iterable[Case], source: str) -> list[tuple[Case, Case]]:
    """(case, the same with the older binary) wherever the binaries differ; constants the older lacks are left out."""
    pairs, binaries = [], {}
    for case in cases:
        if case.name not in binaries:
            binaries[case.name] = older_binary(source, case.name)
        old = binaries[case.name]
        if old is None or old == case.spirv:
            continue
        known = reflect(old, f"{case.name} of {source}").constants
        constants = tuple((key, value) for key, value in case.wanted.constants if key in known)
        pairs.append((case, Case(replace(case.wanted, constants=constants), old, case.purposes)))
    return pairs


def changes(before: Statistics, after: Statistics) -> dict[str, tuple[float | int | None, float | int | None]]:
    """Our statistics that differ: name -> (before, after). Raises LabError when one of them was not built."""
    for one in (before, after):
        if one.error:
            raise LabError(f"{one.kernel}: {one.error}")
    both = {name: (before.numbers[name], after.numbers[name]) for name in NAMES} | {
        "spills": (before.spills, after.spills)
    }
    return {name: (old, new) for name, (old, new) in both.items() if old != new}
