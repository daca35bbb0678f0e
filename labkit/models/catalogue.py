"""Where models come from: the catalogue of known ones, and the folder this lab keeps them in."""

import os
from pathlib import Path

from labkit.errors import ModelError


def models_folder() -> Path:
    """Where models are kept: `LABKIT_MODELS`, else `data/models` of the lab."""
    if chosen := os.environ.get("LABKIT_MODELS"):
        return Path(chosen).expanduser()
    return Path(__file__).resolve().parents[2] / "data" / "models"


CATALOGUE = {"smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf"}


def locate(source: str | os.PathLike[str]) -> Path:
    """The file `source` names. Raises ModelError where there is none."""
    if isinstance(source, str) and source in CATALOGUE:
        return models_folder() / CATALOGUE[source]
    path = Path(source).expanduser()
    if path.is_dir() and any(path.glob("*.safetensors")):
        raise ModelError(f"{path} holds .safetensors files; labkit reads only GGUF so far, name a .gguf file")
    return path
