"""Folders of safetensors: what they are read as, and one line for each way of being damaged."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crafted_folder import copied, edit, rewrite
from crafted_gguf import TINY
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer as Backend

from labkit.errors import ModelError
from labkit.models.model import Model

FOLDERS = sorted(path.name for path in TINY.iterdir() if path.is_dir())
TEXTS = ["def f(x):\n    return x + 1\n", "Grüße, 世界! 12345  \t\n\n x", "'ll it's WE'RE 3.14e-10 <|im_end|>", " " * 9]


def test_a_folder_is_what_its_config_says() -> None:
    c = Model(TINY / "mistral-folder").config
    assert (c.architecture, c.layers, c.hidden, c.ffn, c.heads, c.kv_heads, c.head_dim) == (
        "mistral", 3, 64, 128, 4, 2, 32,
    )  # fmt: skip
    assert (c.rope_theta, c.rope_pairing, c.windows, c.tied, c.context) == (1e5, "interleaved", (16,) * 3, False, 2048)
    llama = Model(TINY / "llama3-folder").config
    assert llama.rope_freq_factors is not None
    assert (llama.rope_freq_factors[0], llama.rope_freq_factors[-1]) == (1.0, 8.0)
    qwen = Model(TINY / "qwen3-folder").config
    assert (qwen.rope_pairing, qwen.head_dim, qwen.tied, qwen.windows) == ("half", 32, True, ())


def test_rows_of_q_and_k_lie_as_in_a_gguf_file_of_the_same_weights() -> None:
    """mistral-f32.gguf and mistral-folder were made of the same numbers, which the folder rounds to bfloat16."""
    folder, file = Model(TINY / "mistral-folder"), Model(TINY / "mistral-f32.gguf")
    assert folder.tensors.keys() == file.tensors.keys()
    for name in file.tensors:
        true = file.array(name)
        assert np.abs(folder.array(name) - true).max() <= np.abs(true).max() * 2**-8, name
    raw = folder.raw("blk.1.attn_k.weight").reshape(64, -1)
    assert np.array_equal(folder.rows("blk.1.attn_k.weight", 17, 40), raw[17:40])


@pytest.mark.parametrize("name", FOLDERS)
def test_text_becomes_the_ids_that_the_hub_s_own_tokenizer_gives(name: str) -> None:
    model, backend = Model(TINY / name), Backend.from_file(str(TINY / name / "tokenizer.json"))
    for text in TEXTS:
        assert model.tokenizer.encode(text, special=True) == backend.encode(text, add_special_tokens=False).ids
        assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    assert (model.tokenizer.bos_id, model.tokenizer.add_bos) == (1, False)
    assert 2 in model.tokenizer.eos_ids
    assert model.chat([{"role": "user", "content": "hi"}]).startswith("<|im_start|>user\nhi<|im_end|>")


def test_shards_are_read_as_one_model(tmp_path: Path) -> None:
    folder, whole = copied("qwen2-folder", tmp_path), Model(TINY / "qwen2-folder")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, own in parts.items() for name in own}}))
    model = Model(folder)
    for name in whole.tensors:
        assert np.array_equal(model.raw(name), whole.raw(name))
    assert len(model.sha256) == 64
    assert model.sha256 != whole.sha256
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks b\.safetensors, which its index names \(1 of 2 missing\)"):
        Model(folder)
    index.write_text(json.dumps({"weight_map": {"x": "../../etc/passwd"}}))
    with pytest.raises(ModelError, match=r"names no \.safetensors files of its folder"):
        Model(folder)


def setting(key: str, value: Any) -> Any:
    return lambda state: state.update({key: value})


CONFIGS = [
    (setting("model_type", "mamba"), "'mamba' is not among those labkit runs: .*llama, mistral, qwen2, qwen3"),
    (setting("model_type", ["llama"]), "is not among those labkit runs"),
    (lambda c: c.pop("model_type"), "'None' is not among those labkit runs"),
    (setting("quantization_config", {"quant_method": "awq"}), r"quantised \(awq\)"),
    (setting("hidden_act", "gelu"), "hidden_act is 'gelu'"),
    (setting("num_hidden_layers", "3"), "num_hidden_layers is '3', not a number"),
    (setting("num_hidden_layers", 10**30), "num_hidden_layers is 10"),
    (setting("num_hidden_layers", 4), "lacks tensor 'blk.3"),
    (setting("num_hidden_layers", 2.5), "not one whole number"),
    (lambda c: c.pop("hidden_size"), "hidden_size is 'None'"),
    (setting("num_attention_heads", 0), "num_attention_heads is 0"),
    (setting("num_key_value_heads", 3), "4 heads, not a multiple of its 3"),
    (setting("head_dim", 16), "has shape .* and its metadata says"),
    (setting("vocab_size", 7), None),  # the table says it
    (setting("tie_word_embeddings", False), r"lacks tensor 'lm_head\.weight'"),
    (setting("rope_parameters", {"rope_type": "dynamic", "factor": 2.0}), "'dynamic' turns each request"),
    (setting("rope_parameters", {"rope_type": "yarn", "factor": 2.0}), "original_max_position_embeddings is 'None'"),
    (setting("rope_parameters", {"rope_type": "longrope", "factor": 2.0}), "RoPE scaling 'longrope'"),
    (setting("rope_parameters", {"rope_theta": "big"}), "rope_theta is 'big', not a number"),
    (setting("rope_parameters", {"rope_theta": 10**400}), "rope_theta is 1000"),
    (setting("rope_parameters", ["x"]), "described by"),
    (setting("rope_parameters", {"rope_theta": float("nan")}), "RoPE base is nan"),
    (setting("partial_rotary_factor", 2), "partial_rotary_factor is '2'"),
    (setting("rms_norm_eps", 7.0), "epsilon is 7.0"),
]


@pytest.mark.parametrize(("change", "reason"), CONFIGS, ids=[str(reason)[:40] for _, reason in CONFIGS])
def test_a_config_that_labkit_cannot_run_is_one_line(tmp_path: Path, change: Any, reason: str | None) -> None:
    folder = copied("qwen3-folder", tmp_path)
    edit(folder / "config.json", change)
    if reason is None:
        assert Model(folder).config.vocab == 515
        return
    with pytest.raises(ModelError, match=reason) as caught:
        Model(folder)
    assert "\n" not in str(caught.value)


def first(state: dict[str, Any]) -> dict[str, Any]:
    return state["model.norm.weight"]


HEADERS = [
    (lambda h: first(h).update(dtype="F64"), "is F64; labkit runs F32, F16, BF16"),
    (lambda h: first(h).update(dtype="Q4"), "dtype 'Q4', which the format does not define"),
    (lambda h: first(h).update(shape=[65]), r"BF16 \[65\] does not take the 128 bytes"),
    (lambda h: first(h).update(shape=[-64]), "has shape"),
    (lambda h: first(h).update(shape=[1 << 61, 1 << 61]), "does not take"),
    (lambda h: first(h).update(shape=[True]), "has shape"),
    (lambda h: first(h).update(data_offsets=[0, 1 << 60]), "it is cut short or damaged"),
    (lambda h: first(h).update(data_offsets=[128, 0]), "cut short or damaged"),
    (lambda h: first(h).update(data_offsets=[0, 128]), "overlap at byte"),
    (lambda h: h.pop("model.norm.weight"), "leave a gap at byte|tensors end at byte"),
    (lambda h: h.update({"model.norm.weight": 7}), "not described by dtype"),
    (
        lambda h: h.update({"model.layers.0.surprise.weight": h.pop("model.norm.weight")}),
        "surprise.weight' is not part",
    ),
]


@pytest.mark.parametrize(("change", "reason"), HEADERS, ids=[reason[:30] for _, reason in HEADERS])
def test_a_header_that_does_not_fit_its_file_is_one_line(tmp_path: Path, change: Any, reason: str) -> None:
    folder = copied("qwen3-folder", tmp_path)
    rewrite(folder / "model.safetensors", change)
    with pytest.raises(ModelError, match=reason) as caught:
        Model(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"abc", "its header claims"),
        (struct.pack("<Q", 1 << 63), "its header claims 9223372036854775808 bytes"),
        (struct.pack("<Q", 90_000_000) + b"{}", "claims 90000000 bytes and the file has 10"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 4) + b"\xff{} ", "is not JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "is not JSON"),
        (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "stands in it twice"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_bytes_that_are_no_safetensors_file_are_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    folder = copied("qwen3-folder", tmp_path)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        Model(folder)
    assert "\n" not in str(caught.value)


def test_a_file_cut_at_any_place_is_refused(tmp_path: Path) -> None:
    folder = copied("qwen3-folder", tmp_path)
    raw = (folder / "model.safetensors").read_bytes()
    for place in [*range(1, 200, 13), *range(200, len(raw), len(raw) // 40), len(raw) - 1]:
        (folder / "model.safetensors").write_bytes(raw[:place])
        with pytest.raises(ModelError):
            Model(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t["model"].update(type="Unigram", vocab=[]), "tokenizer Unigram is not among"),
        (lambda t: t["model"].update(byte_fallback=True), r"tokenizer llama \(SentencePiece\) is not among"),
        (lambda t: t.update(pre_tokenizer={"type": "Whitespace"}), "pre-tokenizer 'unlisted' is not among"),
        (lambda t: t["model"]["vocab"].update(x=1 << 40), "has id 1099511627776"),
        (lambda t: t["model"]["vocab"].update(x=9), "share id 9"),
        (lambda t: t["model"].update(merges=["a b c"]), "a merge is"),
        (lambda t: t["model"]["vocab"].pop("Ġdef"), "merges do not fit its vocabulary"),
        (lambda t: t.update(added_tokens=[{"id": -1, "content": "x"}]), "an added token is"),
        (lambda t: t["model"]["vocab"].update(x=600), "601 tokens for 515 rows"),
    ],
)
def test_a_tokenizer_labkit_cannot_rebuild_is_one_line(tmp_path: Path, change: Any, reason: str) -> None:
    folder = copied("qwen3-folder", tmp_path)
    edit(folder / "tokenizer.json", change)
    with pytest.raises(ModelError, match=reason) as caught:
        Model(folder).tokenizer.encode("x")
    assert "\n" not in str(caught.value)


def test_older_and_richer_configs_say_the_same(tmp_path: Path) -> None:
    folder = copied("qwen2-folder", tmp_path)
    edit(folder / "config.json", lambda c: (c.pop("rope_parameters"), c.update(rope_theta=1e5)))
    assert Model(folder).config == Model(TINY / "qwen2-folder").config
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0}
    edit(folder / "config.json", lambda c: c.update(rope_scaling=yarn, rope_theta=1e4))
    config, same = Model(folder).config, Model(TINY / "qwen3-yarn-f32.gguf").config
    assert config.rope_freq_factors is not None
    assert config.rope_freq_factors[-1] == 4.0
    assert config.rope_scale == same.rope_scale == pytest.approx(1 + 0.1 * np.log(4))
    for more, scale in (({"attention_factor": 1.25}, 1.25), ({"mscale": 2.0, "mscale_all_dim": 1.0}, None)):
        edit(folder / "config.json", lambda c, more=more: c.update(rope_scaling=yarn | more))
        want = scale or (1 + 0.2 * np.log(4)) / (1 + 0.1 * np.log(4))
        assert Model(folder).config.rope_scale == pytest.approx(want)


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"use_sliding_window": False, "sliding_window": 8}, ()),
        ({"use_sliding_window": True, "sliding_window": 8, "layer_types": None, "max_window_layers": 1}, (0, 8, 8)),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            None,
        ),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention"] + ["full_attention"] * 2,
            },
            (8, 0, 0),
        ),
    ],
)
def test_windows_are_those_of_the_layers_the_config_says(tmp_path: Path, more: Any, windows: Any) -> None:
    folder = copied("qwen2-folder", tmp_path)
    edit(folder / "config.json", lambda c: c.update(more))
    if windows is None:
        with pytest.raises(ModelError, match="4 marks of sliding windows for 3 layers"):
            Model(folder)
    else:
        assert Model(folder).config.windows == windows


def test_rows_without_a_token_are_there_but_mean_nothing(tmp_path: Path) -> None:
    """Folders often have more rows than tokens; ids of the rest decode to a filler, and no text becomes them."""
    folder = copied("qwen3-folder", tmp_path)
    edit(
        folder / "tokenizer.json",
        lambda t: t["model"]["vocab"].pop(next(k for k, v in t["model"]["vocab"].items() if v == 514)),
    )
    edit(
        folder / "tokenizer.json",
        lambda t: t["model"].update(merges=[m for m in t["model"]["merges"] if "".join(m) in t["model"]["vocab"]]),
    )
    tokenizer = Model(folder).tokenizer
    assert len(tokenizer) == 515
    assert tokenizer.token_text(514) == "[PAD514]"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = copied("qwen3-folder", tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        Model(folder).tokenizer  # noqa: B018
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        Model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        Model(folder)
    with pytest.raises(ModelError, match="name the folder that holds it"):
        Model(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "two.safetensors").touch()
    (folder / "config.json").write_text((TINY / "qwen3-folder" / "config.json").read_text())
    with pytest.raises(ModelError, match=r"2 \.safetensors files and no"):
        Model(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"without a \.gguf file"):
        Model(empty)


def test_a_closed_folder_says_so() -> None:
    with Model(TINY / "qwen3-folder") as model:
        assert model.array("output_norm.weight").shape == (64,)
    with pytest.raises(ModelError, match="is closed"):
        model.raw("output_norm.weight")
