"""The package as people install it: the lock, the conda environment, and a wheel that holds its shaders."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from labkit.vulkan.compile import read_manifest

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
CONDA_NAMES = {"python-kaleido": "kaleido"}  # conda-forge's name -> PyPI's
NOT_PYTHON = {"python", "pip", "libvulkan-loader", "lavapipe"}
PYTHONS = ["3.11", "3.12", "3.13"]
APART = {"peers"}  # extras of other engines: installed where one compares, maybe into an environment of their own


def declared() -> dict[str, Requirement]:
    """Every requirement of pyproject.toml, extras included but for those apart: name -> requirement."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name in set(extras) - APART for line in extras[name])]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def locked(python: str) -> dict[str, str]:
    """The versions requirements.lock gives one Python on Linux: name -> version."""
    found = {}
    here = {**default_environment(), "python_version": python, "python_full_version": f"{python}.9"}
    for line in (REPOSITORY / "requirements.lock").read_text().splitlines():
        if not line or line.startswith(("#", " ")):
            continue
        pin = Requirement(line)
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), f"{line} is not an exact pin"
        if pin.marker is None or pin.marker.evaluate(here):
            name = canonicalize_name(pin.name)
            assert name not in found, f"{name} is pinned twice for Python {python}"
            found[name] = str(pin.specifier).removeprefix("==")
    return found


@pytest.mark.quick
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_pins_everything_declared_within_its_range(python: str):
    pins = locked(python)
    for name, wanted in declared().items():
        assert name in pins, f"{name} is not in requirements.lock"
        assert wanted.specifier.contains(pins[name]), f"{name} {pins[name]} is outside {wanted.specifier}"


def test_the_lock_pins_whatever_those_packages_need_in_turn():
    pins, waiting, seen = locked(f"{sys.version_info[0]}.{sys.version_info[1]}"), list(declared()), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        assert name in pins, f"{name} is needed but not in requirements.lock"
        for line in importlib.metadata.requires(name) or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(need.name))
    assert len(seen) > 100


@pytest.mark.quick
def test_the_packages_the_lab_is_built_on_are_declared():
    assert {"jupyterlab", "ipywidgets", "vulkan", "numpy", "pandas", "plotly", "papermill"} <= set(declared())


@pytest.mark.quick
def test_every_package_the_code_imports_is_declared():
    owners = importlib.metadata.packages_distributions()
    apart = {Requirement(line).name for name in APART for line in PROJECT["optional-dependencies"][name]}
    known = {*declared(), *apart, "cyllama"}  # which cyllama-vulkan brings
    undeclared: dict[str, str] = {}
    for path in sorted((REPOSITORY / "labkit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for top in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"labkit"}:
                if not {canonicalize_name(owner) for owner in owners.get(top, [top])} & known:
                    undeclared[top] = str(path.relative_to(REPOSITORY))
    assert undeclared == {}


@pytest.mark.quick
def test_the_conda_environment_is_in_step_with_pyproject():
    assert CONDA["name"] == "labkit"
    assert CONDA["channels"] == ["conda-forge"]
    plain = [line for line in CONDA["dependencies"] if isinstance(line, str)]
    (pip,) = [line["pip"] for line in CONDA["dependencies"] if isinstance(line, dict)]
    (line,) = pip  # what conda does not bring comes from pyproject.toml, with every extra
    assert line.startswith("-e .")
    assert Requirement(line.replace("-e .", "labkit")).extras == set(PROJECT["optional-dependencies"]) - APART
    wanted = declared()
    for line in plain:
        name, _, specifier = line.partition(" ")
        if name == "python":
            assert specifier.startswith(PROJECT["requires-python"])
        if name in NOT_PYTHON:
            continue
        name = canonicalize_name(CONDA_NAMES.get(name, name))
        assert name in wanted, f"environment.yml has {name}, pyproject.toml has not"
        assert specifier == str(wanted[name].specifier), f"{name} differs from pyproject.toml"


@pytest.mark.slow
def test_a_wheel_holds_every_shader_and_works_without_the_repository(tmp_path: Path):
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    source = tmp_path / "source"
    for name in ("labkit", "shaders"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    (source / "data").mkdir()
    shutil.copy(REPOSITORY / "data" / "devices.toml", source / "data")
    subprocess.run([*build, str(source)], check=True)
    (wheel,) = tmp_path.glob("labkit-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"labkit/lab/starter/template.ipynb", "labkit/lab/starter/README.md"} <= names  # what `lab init` begins with
    committed = read_manifest(source / "shaders")
    assert committed
    for name, entry in committed.items():
        assert f"labkit/_shaders/spv/{name}" in names
        assert f"labkit/_shaders/{entry['source']}" in names
    assert "labkit/_shaders/spv/manifest.json" in names
    assert "labkit/_data/devices.toml" in names  # the limits that `lab audit` judges by
    ours = [path for path in (source / "labkit").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert [str(path.relative_to(source)) for path in ours if str(path.relative_to(source)) not in names] == []
    assert not [name for name in names if not name.startswith("labkit")]
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    program = (
        "from labkit.vulkan import compile as c; m = c.read_manifest(); print(c.shader_root())\n"
        "for n in m: p = n.removesuffix('.spv').split('.'); c.load_spirv(p[0], '.'.join(p[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(installed)},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == installed / "labkit" / "_shaders"


@pytest.mark.quick
def test_importing_labkit_is_quick_and_brings_in_no_heavy_package():
    heavy = {"numpy", "vulkan", "pandas", "plotly", "papermill", "scipy", "IPython", "torch", "jupyter_client"}
    program = (
        "import sys, time; t = time.perf_counter(); import labkit; t = time.perf_counter() - t\n"
        f"print(t, *sorted({heavy} & set(sys.modules)))"
    )
    times = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        seconds, *loaded = done.stdout.split()
        assert loaded == []
        times.append(float(seconds))
    assert min(times) < 0.3
