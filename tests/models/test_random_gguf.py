"""GGUF files of random weights: read back as a model of the very shape, finite values, nothing left behind."""

import shutil
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from labkit.errors import ModelError
from labkit.models import random_gguf
from labkit.models.model import Model
from labkit.models.random_gguf import noise, temporary_gguf, vocabulary, write_random_gguf
from labkit.models.shapes import SHAPES, ShapeModel
from labkit.models.tensor_types import tensor_type


@pytest.mark.parametrize("quant", ["f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_the_file_is_a_model_of_the_shape_in_the_asked_types(quant: str, tmp_path: Path) -> None:
    shape = ShapeModel("tiny", quant)
    path = tmp_path / "m.gguf"
    assert write_random_gguf(shape, path) == path.stat().st_size
    with Model(path) as model:
        assert {name: (t.shape, t.type.name) for name, t in model.tensors.items()} == {
            name: (t.shape, t.type.name) for name, t in shape.tensors.items()
        }
        for field in ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "rope_theta", "tied"):
            assert getattr(model.config, field) == getattr(shape.config, field)
        for name, tensor in model.tensors.items():
            values = model.array(name)
            assert np.isfinite(values).all()
            if len(tensor.shape) == 2:
                assert 0.015 < values.std() < 0.025
                assert abs(values.mean()) < 0.003
            else:
                assert (values == 1).all()


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen3-8b", "gemma-3-4b"])
def test_a_file_of_another_architecture_is_read_as_its_shape_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SHAPES[name]
    small = {
        "layers": 6,
        "hidden": 64,
        "ffn": 64,
        "heads": 2,
        "kv_heads": 1,
        "vocab": 512,
        "windows": config.windows[:6],
    }
    monkeypatch.setitem(SHAPES, "small", replace(config, **small))
    write_random_gguf(ShapeModel("small", "f16"), tmp_path / "m.gguf")
    with Model(tmp_path / "m.gguf") as model:
        assert replace(model.config, rms_eps=1e-6) == SHAPES["small"]  # the file has it in float32
        assert model.config.rms_eps == pytest.approx(1e-6)


@pytest.mark.parametrize("name", sorted(random_gguf._FIELDS))
def test_random_blocks_of_every_type_are_finite_and_small(name: str) -> None:
    kind = tensor_type(name)
    raw = noise(kind, 1 << 16)
    assert len(raw) % kind.block_bytes == 0
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert np.isfinite(values).all()
    assert 0.008 < values.std() < 0.04
    assert abs(values.mean()) < 0.01


def test_a_type_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(ModelError, match="random weights of TQ1_0 cannot be made; there are Q8_0, Q4_0"):
        noise(tensor_type("TQ1_0"))


def test_the_vocabulary_has_as_many_tokens_and_no_byte_pieces() -> None:
    tokens, scores, types = vocabulary(512)
    assert len(tokens) == len(scores) == len(types) == len(set(tokens)) == 512
    assert "<0x0A>" in tokens
    assert set(types) == {1, 2, 3}
    with pytest.raises(ModelError, match="a vocabulary of 100"):
        vocabulary(100)


def test_the_temporary_file_is_gone_afterwards_even_after_an_error() -> None:
    def fail(path: Path) -> None:
        assert path.is_file()
        seen.append(path)
        raise KeyError

    seen: list[Path] = []
    with pytest.raises(KeyError), temporary_gguf(ShapeModel("tiny", "q4_0")) as path:
        fail(path)
    assert not seen[0].parent.exists()


def test_a_full_disk_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with (
        pytest.raises(ModelError, match=r"does not fit in .*, which has 1,000 free; point TMPDIR"),
        temporary_gguf(ShapeModel("tiny", "q4_0")),
    ):
        pass


def test_every_known_shape_has_room_for_its_vocabulary() -> None:
    for config in SHAPES.values():
        vocabulary(config.vocab)
