"""Puts shaders/ into the wheel as labkit/_shaders, and the limits of devices as labkit/_data/devices.toml; everything
else about the package stands in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHADERS = Path(__file__).parent / "shaders"
DEVICES = Path(__file__).parent / "data" / "devices.toml"


class BuildWithShaders(build_py):
    """The ordinary build, plus the shader sources, what they include, their binaries and the manifest, and the limits of
    devices."""

    def _data(self) -> dict[str, Path]:
        """Where each file goes in the build folder -> the file; nothing for an editable install: it reads them here."""
        if self.editable_mode:
            return {}
        found = [
            p
            for pattern in ("*.comp", "include/*.glsl", "spv/*.spv", "spv/manifest.json")
            for p in SHADERS.glob(pattern)
        ]
        inside = {path: Path("_shaders", path.relative_to(SHADERS)) for path in found}
        inside[DEVICES] = Path("_data", DEVICES.name)
        return {str(Path(self.build_lib, "labkit", place)): path for path, place in inside.items()}

    def run(self) -> None:
        super().run()
        for target, path in self._data().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(str(path), target, preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *self._data()]


setup(cmdclass={"build_py": BuildWithShaders})
