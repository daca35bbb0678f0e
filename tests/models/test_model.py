"""Model and ModelConfig: what a llama file says, and one line where labkit cannot run it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from crafted_gguf import TINY

from labkit.errors import ModelError
from labkit.models.model import Model

FILES = sorted(path.name for path in TINY.glob("*.gguf"))
Change = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Change], Path]:
    """Rewrites the tiny llama file after `change(metadata, tensors)`: {key: (value, type)}, {name: (array, type)}."""

    def rewrite(change: Change) -> Path:
        reader = gguf.GGUFReader(TINY / "llama-q4_0.gguf")
        metadata: dict[str, Any] = {
            key: (field.contents(), field.types[0], field.types[-1])
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.")
        }
        tensors: dict[str, Any] = {each.name: (np.array(each.data), each.tensor_type) for each in reader.tensors}
        change(metadata, tensors)
        path = tmp_path / "changed.gguf"
        writer = gguf.GGUFWriter(str(path), metadata.pop("general.architecture")[0])
        for key, (content, kind, sub) in metadata.items():
            writer.add_key_value(key, content, kind, sub if kind == gguf.GGUFValueType.ARRAY else None)
        for name, (array, kind) in tensors.items():
            writer.add_tensor(name, array, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return rewrite


def setting(key: str, content: Any, kind: str) -> Change:
    def change(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        metadata[key] = (content, gguf.GGUFValueType[kind], gguf.GGUFValueType[kind])

    return change


def without(key: str) -> Change:
    def change(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        (metadata if key in metadata else tensors).pop(key)

    return change


def tensor(name: str, array: np.ndarray, kind: str = "F32") -> Change:
    def change(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors[name] = (array, gguf.GGMLQuantizationType[kind])

    return change


def test_the_configuration_is_what_the_fixture_was_made_with() -> None:
    c = Model(TINY / "llama-q4_1.gguf").config
    assert (c.architecture, c.layers, c.hidden, c.ffn, c.heads, c.kv_heads, c.head_dim) == (
        "llama",
        3,
        64,
        192,
        4,
        2,
        32,
    )
    assert (c.rope_theta, c.rope_dim, c.rope_pairing, c.rope_freq_factors) == (1e5, 32, "interleaved", None)
    assert (c.vocab, c.context, c.tied) == (768, 2048, True)
    assert c.rms_eps == pytest.approx(1e-5)
    odd = Model(TINY / "odd24-f32.gguf").config
    assert (odd.hidden, odd.ffn, odd.heads, odd.kv_heads, odd.head_dim, odd.vocab, odd.tied) == (
        96,
        100,
        6,
        2,
        24,
        515,
        False,
    )


def test_llama_3_rope_factors_follow_the_published_rule() -> None:
    # llama-models, apply_scaling: factor 8, low 1, high 4, trained on 512; theta 5e5, heads of 32
    factors = Model(TINY / "llama31-f32.gguf").config.rope_freq_factors
    assert factors is not None
    frequencies = 5e5 ** (-np.arange(0, 32, 2) / 32)
    for frequency, factor in zip(frequencies, factors, strict=True):
        length = 2 * np.pi / frequency
        smooth = np.clip((512 / length - 1) / (4 - 1), 0, 1)
        scaled = (1 - smooth) * frequency / 8 + smooth * frequency
        assert frequency / factor == pytest.approx(scaled, rel=1e-5)
    assert factors[0] == 1.0
    assert factors[-1] == 8.0


@pytest.mark.parametrize("name", FILES)
def test_arrays_equal_the_reference_dequantiser(name: str) -> None:
    model, reader = Model(TINY / name), gguf.GGUFReader(TINY / name)
    for each in reader.tensors:
        expected = gguf.quants.dequantize(each.data, each.tensor_type)
        found = model.array(each.name)
        assert found.dtype == np.float32
        assert found.shape == model.tensors[each.name].shape
        assert np.array_equal(found.reshape(-1), expected.reshape(-1))
    assert sum(model.bytes_by_type.values()) == model.nbytes == sum(each.n_bytes for each in reader.tensors)


def test_sha256_is_that_of_the_file() -> None:
    tool = subprocess.run(["sha256sum", TINY / "odd-q4_1.gguf"], capture_output=True, text=True, check=True)
    assert Model(TINY / "odd-q4_1.gguf").sha256 == tool.stdout.split()[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (setting("general.architecture", "mamba", "STRING"), "'mamba' is not among those labkit runs: .*llama"),
        (without("llama.block_count"), "lacks 'llama.block_count'"),
        (without("llama.attention.layer_norm_rms_epsilon"), "lacks 'llama.attention.layer_norm_rms_epsilon'"),
        (setting("llama.block_count", "3", "STRING"), "not one whole number"),
        (setting("llama.block_count", True, "BOOL"), "not one whole number"),
        (setting("llama.block_count", 0, "UINT32"), "layers = 0"),
        (setting("llama.block_count", 2**32 - 1, "UINT32"), "layers = 4294967295"),
        (setting("llama.block_count", 4, "UINT32"), "lacks tensor 'blk.3"),
        (setting("llama.block_count", 2, "UINT32"), "'blk.2.* is not part of"),
        (setting("llama.attention.head_count", 0, "UINT32"), "0 heads"),
        (setting("llama.attention.head_count_kv", 0, "UINT32"), "kv_heads = 0"),
        (setting("llama.attention.head_count_kv", 3, "UINT32"), "4 heads, not a multiple of its 3"),
        (setting("llama.attention.key_length", 16, "UINT32"), "keys of 16 and values of 32"),
        (setting("llama.embedding_length", 128, "UINT32"), "has shape .* and its metadata says"),
        (setting("llama.feed_forward_length", 64, "UINT32"), "'blk.0.ffn_gate.weight' has shape"),
        (setting("llama.context_length", 0, "UINT32"), "context = 0"),
        (setting("llama.rope.dimension_count", 31, "UINT32"), "rotates 31 of 32"),
        (setting("llama.rope.dimension_count", 64, "UINT32"), "rotates 64 of 32"),
        (setting("llama.rope.freq_base", float("nan"), "FLOAT32"), "RoPE base is nan"),
        (setting("llama.rope.freq_base", -1.0, "FLOAT32"), "RoPE base is -1"),
        (setting("llama.rope.scaling.type", "longrope", "STRING"), "RoPE scaling 'longrope' .*: none, linear, yarn"),
        (setting("llama.rope.scaling.type", "llama3", "STRING"), "lacks 'llama.rope.scaling.low_freq_factor'"),
        (setting("llama.attention.layer_norm_rms_epsilon", 0.0, "FLOAT32"), "epsilon is 0"),
        (setting("llama.expert_count", 8, "UINT32"), "llama.expert_count = 8"),
        (setting("llama.attention.sliding_window", -1, "INT32"), "a sliding window of -1"),
        (setting("llama.attention.sliding_window_pattern", 6, "UINT32"), "not a list of truth values"),
        (setting("split.count", 2, "UINT16"), "one of 2 parts"),
        (without("token_embd.weight"), "lacks tensor 'token_embd.weight'"),
        (without("blk.1.attn_k.weight"), "lacks tensor 'blk.1.attn_k.weight'"),
        (tensor("blk.0.attn_q.bias", np.zeros(128, np.float32)), "'blk.0.attn_q.bias' is not part of"),
        (tensor("output_norm.weight", np.zeros(65, np.float32)), "has shape"),
        (
            tensor("blk.0.ffn_up.weight", np.zeros((192, 64), np.float64), "F64"),
            "F64 is not among the types labkit runs: F32",
        ),
        (tensor("output_norm.weight", np.zeros(68, np.uint8), "Q8_0"), "a vector of Q8_0"),
        (tensor("rope_freqs.weight", np.zeros(16, np.float32)), "not all positive"),
        (tensor("rope_freqs.weight", np.ones(8, np.float32)), "rope_freqs.weight"),
        (setting("tokenizer.ggml.tokens", ["a"], "STRING"), None),
    ],
)
def test_what_labkit_cannot_run_is_one_line(changed: Any, change: Change, reason: str | None) -> None:
    if reason is None:  # an array needs both types

        def change(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
            metadata["tokenizer.ggml.tokens"] = (["a"], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING)

        reason = "1 tokens for 768 rows"
    with pytest.raises(ModelError, match=reason) as caught:
        Model(changed(change))
    assert "\n" not in str(caught.value)


def test_linear_rope_scaling_divides_every_frequency(changed: Any) -> None:
    def change(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        setting("llama.rope.scaling.type", "linear", "STRING")(metadata, tensors)
        setting("llama.rope.scaling.factor", 4.0, "FLOAT32")(metadata, tensors)

    assert Model(changed(change)).config.rope_freq_factors == (4.0,) * 16


def test_yarn_scaling_divides_slow_frequencies_and_scales_the_rotation(changed: Any) -> None:
    def change(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        setting("llama.rope.scaling.type", "yarn", "STRING")(metadata, tensors)
        setting("llama.rope.scaling.factor", 4.0, "FLOAT32")(metadata, tensors)
        setting("llama.rope.scaling.original_context_length", 512, "UINT32")(metadata, tensors)

    config = Model(changed(change)).config
    assert config.rope_freq_factors is not None
    assert (config.rope_freq_factors[0], config.rope_freq_factors[-1]) == (1.0, pytest.approx(4.0))
    assert config.rope_scale == pytest.approx(1 + 0.1 * np.log(4))


def test_a_sliding_window_is_that_of_every_layer(changed: Any) -> None:
    config = Model(changed(setting("llama.attention.sliding_window", 16, "UINT32"))).config
    assert config.windows == (16, 16, 16)
    assert (config.window(0, 17), config.window(0, 16)) == (16, 0)


def test_missing_optional_values_take_llama_cpps_defaults(changed: Any) -> None:
    def change(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
        for key in ("rope.freq_base", "rope.dimension_count"):
            metadata.pop(f"llama.{key}")

    config = Model(changed(change)).config
    assert (config.rope_theta, config.rope_dim) == (10000.0, 32)


def test_representations_hold_the_numbers() -> None:
    model = Model(TINY / "llama-q4_1.gguf")
    assert repr(model).startswith("<Model llama-q4_1: llama, 3 layers of 64, 4/2 heads of 32, vocabulary 768")
    page = model._repr_html_()
    for piece in ("tiny llama", ">Q4_1</td>", ">Q8_0</td>", ">F32</td>", "llama-q4_1.gguf", "2,048 tokens"):
        assert piece in page


def test_a_name_with_markup_is_escaped(changed: Any) -> None:
    page = Model(changed(setting("general.name", "<script>x</script>", "STRING")))._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_closed_model_says_so_and_closes_twice() -> None:
    with Model(TINY / "odd-q8_0.gguf") as model:
        assert model.array("output_norm.weight").shape == (96,)
    model.close()
    with pytest.raises(ModelError, match="is closed"):
        model.raw("output_norm.weight")


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(ModelError, match=r"no tensor 'blk\.9\.x'"):
        Model(TINY / "odd-q8_0.gguf").array("blk.9.x")


@pytest.mark.parametrize(
    "source", ["", None, 3, "no-such-model", "x" * 5000, "a\0b", "/no/such/file.gguf", "~nobody/x.gguf"]
)
def test_a_source_that_names_nothing_is_one_line(source: Any, models_folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        Model(source)
    assert "\n" not in str(caught.value)


def test_a_folder_of_gguf_files_says_to_name_one(tmp_path: Path) -> None:
    shutil.copy(TINY / "odd-q8_0.gguf", tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=r"name a file inside it, such as .*a\.gguf"):
        Model(tmp_path)


def test_opening_a_model_imports_neither_tokenizers_nor_jinja() -> None:
    code = (
        "import sys, json; from labkit.models.model import Model; "
        f"Model({str(TINY / 'odd-q8_0.gguf')!r}); print(json.dumps(sorted(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert {"tokenizers", "jinja2", "gguf", "tqdm", "pandas"}.isdisjoint(json.loads(out))
