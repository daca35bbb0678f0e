"""`Model`: one model file opened for reading, with its shape, tensors, tokenizer and chat template."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from labkit.errors import ModelError
from labkit.models.config import ModelConfig, ModelFile, read_config
from labkit.models.gguf import GgufFile, Tensor
from labkit.models.tokenizer import Tokenizer


def _open(path: Path) -> ModelFile:
    if not path.is_dir():
        return GgufFile(path)
    from labkit.models.folder import ModelFolder

    return ModelFolder(path)


class Model:
    """A model by catalogue name ("smollm2-135m"), by path of a .gguf file or of a folder with config.json and
    .safetensors files of BF16, F16 or F32, or "hf:owner/repo/file.gguf".

    A catalogue or hub model that is not on the disk is fetched first, with its progress on stderr.
    `name` is the catalogue's, else the file's without its suffix. Raises ModelError, in one line, for a file that is
    missing, damaged, or of a kind labkit does not run.
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        from labkit.models.catalogue import locate, name_of

        self.path: Path = locate(source)
        self._file: ModelFile = _open(self.path)
        self.config: ModelConfig = read_config(self._file)
        self.tensors: dict[str, Tensor] = self._file.tensors
        self.metadata: Mapping[str, Any] = self._file.metadata
        self.name: str = name_of(self.path)

    def raw(self, name: str) -> np.ndarray:
        """The bytes of tensor `name`, a read-only uint8 view of the file [nbytes]. ModelError if there is none."""
        return self._file.raw(self._tensor(name))

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` of matrix `name` in its own type, uint8 [rows, bytes]. ModelError if there is none."""
        return self._file.rows(self._tensor(name), start, stop)

    @property
    def files(self) -> list[Path]:
        """The files that decide what the model computes: the .gguf file, or a folder's config.json and weights."""
        return self._file.files

    def array(self, name: str) -> np.ndarray:
        """Tensor `name` dequantised to float32, in its `shape`. ModelError if there is none."""
        tensor = self._tensor(name)
        row_bytes = tensor.type.row_bytes(tensor.shape[-1])
        return tensor.type.dequantise(self._file.raw(tensor).reshape(-1, row_bytes)).reshape(tensor.shape)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ModelError(f"{self.path} has no tensor {name!r}; `model.tensors` holds their names")
        return self.tensors[name]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer the file describes, built when first used. Raises ModelError where labkit cannot."""
        return Tokenizer(self.metadata, str(self.path))

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt text of `messages` ([{"role": "user", "content": "…"}, …]) by the file's own chat template.

        Encode it with `special=True`. Raises ModelError without a template, ParameterError for messages it refuses.
        """
        text: str = self._chat.render(messages, add_generation_prompt)
        return text

    @cached_property
    def _chat(self) -> Any:
        from labkit.models.chat import ChatTemplate

        return ChatTemplate(self.metadata, str(self.path))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the whole file, or over a folder's files, computed when first asked for (a second a gigabyte)."""
        return self._file.digest()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def parameters(self) -> int:
        """Elements of all tensors together."""
        return sum(tensor.nbytes // tensor.type.block_bytes * tensor.type.block for tensor in self.tensors.values())

    @property
    def bytes_by_type(self) -> dict[str, int]:
        """Bytes of the tensors of each type, largest first: {"Q4_1": 66355200, …}."""
        sums: dict[str, int] = {}
        for tensor in self.tensors.values():
            sums[tensor.type.name] = sums.get(tensor.type.name, 0) + tensor.nbytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def describe(self) -> dict[str, Any]:
        """What a run record keeps: name, SHA-256 of the file, architecture, bytes by tensor type, shape."""
        return {
            "name": self.name, "sha256": self.sha256, "random_weights": False, "architecture": self.config.architecture,
            "bytes_by_type": self.bytes_by_type, "layers": self.config.layers, "hidden": self.config.hidden,
            "vocab": self.config.vocab,
        }  # fmt: skip

    def close(self) -> None:
        """Let go of the file; reading tensors afterwards raises ModelError. Closing twice is harmless."""
        self._file.close()
        if "_chat" in self.__dict__:
            self._chat.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        c = self.config
        return (
            f"<Model {self.name}: {c.architecture}, {c.layers} layers of {c.hidden}, {c.heads}/{c.kv_heads} heads of "
            f"{c.head_dim}, vocabulary {c.vocab}, {self.parameters / 1e6:.1f} M parameters, {self.nbytes / 1e6:.1f} MB>"
        )

    def _repr_html_(self) -> str:
        from labkit.show.model import model_html

        return model_html(self)
