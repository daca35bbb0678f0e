"""`import labkit` is quick, touches no GPU, and the core imports nothing beyond the packages it may."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]
CORE = ("vulkan", "ops", "models", "engine", "measure")
# what the core may import: no more than an installation without the extras has
ALLOWED = {"numpy", "vulkan", "gguf", "tokenizers", "safetensors", "jinja2", "click", "pydantic", "scipy", "filelock"}
ALSO = {"labkit.models": {"tqdm"}}  # a download's progress


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip


def seconds(code: str) -> float:
    """CPU seconds of `code` in a process that is already up: what a busy machine does not change much."""
    timed = f"import time; began = time.process_time(); {code}; print(time.process_time() - began)"
    return min(float(run(timed).stdout.split()[-1]) for _ in range(3))


def test_importing_labkit_takes_under_300_ms_of_cpu():
    took = seconds("import labkit")
    print(f"import labkit: {took * 1e3:.0f} ms")
    assert took < 0.3


def test_the_command_line_answers_help_quickly():
    took = seconds("from labkit.cli import lab; lab.main(['--help'], standalone_mode=False)")
    assert took < 0.6


def test_importing_labkit_loads_neither_numpy_nor_the_vulkan_loader():
    code = (
        "import labkit, sys, pathlib; "
        "heavy = {'numpy', 'vulkan', 'click', 'pandas', 'plotly', 'IPython'}; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & heavy)); "
        "print('libvulkan' in pathlib.Path('/proc/self/maps').read_text())"
    )
    assert run(code).stdout.splitlines() == ["[]", "False"]


def test_the_nouns_are_listed_and_a_wrong_one_is_explained():
    import labkit

    assert {"Device", "Model", "Engine", "Lab", "Plan", "Rule", "Kernel", "LabError"} <= set(dir(labkit))
    for name in labkit.__all__:
        assert getattr(labkit, name).__module__.startswith("labkit."), name
    with pytest.raises(AttributeError, match=r"labkit has no 'Engin'; it has Anchor, Device, Engine"):
        _ = labkit.Engin


HOOK = """
import importlib, json, pkgutil, sys
import numpy, scipy  # they import much of their own, of no interest here

imported = {}

class Watch:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        by = frame.f_globals.get("__name__", "") if frame is not None else ""
        if by.split(".")[0] == "labkit" and top not in sys.stdlib_module_names:
            imported.setdefault(".".join(by.split(".")[:2]), set()).add(top)
        return None

sys.meta_path.insert(0, Watch())
for part in sys.argv[1:]:
    package = importlib.import_module(f"labkit.{part}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("_worker"):
            importlib.import_module(module.name)
print(json.dumps({by: sorted(names) for by, names in imported.items()}))
"""


def test_what_the_core_may_import_is_installed_without_extras():
    import tomllib

    names = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert {re.split(r"[^\w-]", name)[0] for name in names} == ALLOWED.union(*ALSO.values())


def test_the_core_imports_only_what_it_may_when_all_of_it_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", HOOK, *CORE], capture_output=True, text=True, timeout=120, check=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found, "the hook saw nothing"
    for by, names in found.items():
        extra = set(names) - ALLOWED - {"labkit"} - ALSO.get(by, set())
        assert not extra, f"{by} imports {sorted(extra)}"


def test_the_core_names_no_other_package_even_inside_functions():
    import ast

    for part in CORE:
        allowed = ALLOWED | {"labkit"} | ALSO.get(f"labkit.{part}", set()) | set(sys.stdlib_module_names)
        for path in sorted((ROOT / "labkit" / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                for name in names:
                    assert name.split(".")[0] in allowed, f"{path.relative_to(ROOT)} imports {name}"
                    assert not name.startswith(("labkit.lab", "labkit.commands")), f"{path.relative_to(ROOT)}: {name}"


def test_everything_is_importable_without_a_vulkan_driver_or_loader(tmp_path):
    code = (
        "import sys; sys.modules['vulkan._vulkan'] = None\n"
        "import labkit\n"
        "from labkit.errors import DeviceError\n"
        "labkit.Device, labkit.Engine, labkit.Model, labkit.Kernel\n"
        "print('imported')\n"
    )
    assert run(code, VK_DRIVER_FILES=str(tmp_path / "none.json")).stdout == "imported\n"


def test_a_missing_loader_is_one_line_with_the_package_to_install():
    code = (
        "import builtins\n"
        "whole = builtins.__import__\n"
        "def refuse(name, *rest, **more):\n"
        "    if name == 'vulkan._vulkan':\n"
        "        raise OSError('libvulkan.so.1: cannot open shared object file')\n"
        "    return whole(name, *rest, **more)\n"
        "builtins.__import__ = refuse\n"
        "import labkit\n"
        "try:\n    labkit.Device('cpu')\nexcept labkit.LabError as error:\n    print(error)\n"
    )
    said = run(code).stdout
    assert said.count("\n") == 1
    assert "libvulkan1 (apt)" in said
