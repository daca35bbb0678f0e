"""What code a lab would run, as hashes to hold against another machine's, and what differs in words."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import labkit
from labkit.lab.capture import capture_git, capture_packages, capture_shaders
from labkit.lab.experiments import Experiment
from labkit.lab.record import Frozen

FEW = 3  # names of packages that are told


class Code(Frozen):
    """The code behind a run: hashes of the notebook's code cells, of the Python files beside it, of labkit's own Python
    files and of the shaders; labkit's version and commit, and the packages' versions, for the words."""

    notebook: str
    beside: str
    source: str
    shaders: str
    labkit: str
    commit: str
    packages: dict[str, str]


def code_of(experiment: Experiment) -> Code:
    """The code that a run of `experiment` would run here and now."""
    from labkit.vulkan.compile import shader_root

    package = Path(labkit.__path__[0])
    packages = capture_packages()
    git = capture_git(package.parent)
    return Code(
        notebook=experiment.code_sha256(),
        beside=hash_files(experiment.path.parent, experiment.path.parent.glob("*.py")),
        source=hash_files(package, package.rglob("*.py")),
        shaders=hashlib.sha256(repr(sorted(capture_shaders(shader_root()).items())).encode()).hexdigest(),
        labkit=packages.get("labkit", "unknown"),
        commit=f"{git.commit[:10]}{' with changes' if git.dirty else ''}" if git else "no commit",
        packages=packages,
    )


def hash_files(root: Path, files: Iterable[Path]) -> str:
    """One SHA-256 of files by name and content, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def other_code(here: Code, there: Code) -> list[str]:
    """What of `there` would run otherwise than here, a phrase each: nothing where the code is the same."""
    found = []
    if here.notebook != there.notebook:
        found.append(f"the notebook's code ({here.notebook[:8]} here, {there.notebook[:8]} there)")
    if here.beside != there.beside:
        found.append("the Python files beside the notebook")
    if here.source != there.source:
        found.append(f"labkit ({here.labkit}, {here.commit} here; {there.labkit}, {there.commit} there)")
    if here.shaders != there.shaders:
        found.append(f"the shaders ({here.shaders[:8]} here, {there.shaders[:8]} there)")
    return found


def other_packages(here: Code, there: Code) -> list[str]:
    """Packages of other versions, in one phrase: every record holds them all, so they are told and never refused."""
    names = [
        name
        for name in sorted({*here.packages, *there.packages})
        if here.packages.get(name) != there.packages.get(name)
    ]
    if not names:
        return []
    few = ", ".join(
        f"{name} {here.packages.get(name, 'none')}/{there.packages.get(name, 'none')}" for name in names[:FEW]
    )
    return [f"packages ({few}{f' and {len(names) - FEW} more' if len(names) > FEW else ''})"]
