"""Puts shaders/ into the wheel as labkit/_shaders; everything else about the package stands in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHADERS = Path(__file__).parent / "shaders"


class BuildWithShaders(build_py):
    """The ordinary build, plus the shader sources, what they include, their binaries and the manifest."""

    def _shaders(self) -> dict[str, Path]:
        """Where each file goes in the build folder -> the file; nothing for an editable install: it reads shaders/."""
        if self.editable_mode:
            return {}
        found = [
            p
            for pattern in ("*.comp", "include/*.glsl", "spv/*.spv", "spv/manifest.json")
            for p in SHADERS.glob(pattern)
        ]
        return {str(Path(self.build_lib, "labkit", "_shaders", path.relative_to(SHADERS))): path for path in found}

    def run(self) -> None:
        super().run()
        for target, path in self._shaders().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(str(path), target, preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *self._shaders()]


setup(cmdclass={"build_py": BuildWithShaders})
