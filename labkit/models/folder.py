"""A folder as the Hugging Face hub keeps a model: config.json, tokenizer.json and .safetensors files, read as a GGUF file.

What a converter would write is made here instead: the metadata under the architecture's keys, the tensors under their
GGUF names, and of Llama and Mistral the rows of Q and K with rotated dimensions side by side.
"""

import hashlib
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from labkit.errors import ModelError
from labkit.models.config import architecture_named
from labkit.models.folder_tokenizer import tokenizer_metadata
from labkit.models.gguf import Tensor
from labkit.models.safetensors import SafetensorsFile, read_json

INDEX = "model.safetensors.index.json"
_MOST_CONFIG, _MOST_INDEX = 1 << 20, 1 << 26
_NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_BLOCK = re.compile(r"model\.layers\.(\d{1,4})\.([a-z_.]+)\.(weight|bias)")
_UNUSED = re.compile(r".*rotary_emb\.inv_freq")
_TURNED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")


class ModelFolder:
    """Metadata and tensors of a folder, as `GgufFile` gives those of a file.

    Raises ModelError, in one line, where something is missing, damaged, or of a kind labkit does not run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config = read_json(path / "config.json", _MOST_CONFIG)
        if not config:
            raise ModelError(f"{path} has no config.json, so the model's shape is unknown")
        try:
            self.metadata: dict[str, Any] = config_metadata(config)
        except ModelError as error:
            raise ModelError(f"{path / 'config.json'}: {error}") from None
        architecture = self.metadata["general.architecture"]
        self.metadata["general.name"] = path.name
        self._files = [SafetensorsFile(each) for each in weight_files(path)]
        self.tensors: dict[str, Tensor] = {}
        self._places: dict[str, tuple[SafetensorsFile, Tensor]] = {}
        tied = config.get("tie_word_embeddings") is True
        for file in self._files:
            for found in file.tensors.values():
                name = gguf_name(found.name)
                if _UNUSED.fullmatch(found.name) or (tied and name == "output.weight"):
                    continue
                if name is None:
                    raise ModelError(f"{file.path}: tensor {found.name[:80]!r} is not part of labkit's {architecture}")
                if name in self.tensors:
                    raise ModelError(f"{file.path}: tensor {found.name[:80]!r} stands in the folder twice")
                self.tensors[name] = Tensor(name, found.shape, found.type, found.offset, found.nbytes)
                self._places[name] = (file, found)
        if config.get("tie_word_embeddings") is False and "output.weight" not in self.tensors:
            raise ModelError(f"{path} lacks tensor 'lm_head.weight', and its config.json ties it to no other")
        heads = self.metadata[f"{architecture}.attention.head_count"]
        self._heads = {"q": heads, "k": self.metadata.get(f"{architecture}.attention.head_count_kv", heads)}
        self._turned = architecture_named(architecture).pairing == "interleaved"
        table = self.tensors.get("token_embd.weight")
        rows = table.shape[0] if table is not None and len(table.shape) == 2 else 0
        self.metadata |= tokenizer_metadata(path, config, rows)

    @property
    def files(self) -> list[Path]:
        """The files that decide what the model computes."""
        return [self.path / "config.json", *(file.path for file in self._files)]

    def raw(self, tensor: Tensor) -> np.ndarray:
        """The tensor's bytes, [nbytes] of uint8. Raises ModelError once closed."""
        return self.rows(tensor, 0, tensor.shape[0]).reshape(-1)

    def rows(self, tensor: Tensor, start: int, stop: int) -> np.ndarray:
        """Rows (of a vector: elements) `start` to `stop` as uint8 [rows, bytes]: a view of the file, or a copy of those
        rows where their order is not the file's."""
        file, found = self._places[tensor.name]
        raw = file.raw(found).reshape(tensor.shape[0], -1)
        turned = _TURNED.fullmatch(tensor.name) if self._turned else None
        if turned is None:
            return raw[start:stop]
        heads = self._heads[turned[1]]
        if tensor.shape[0] % (2 * heads):
            raise ModelError(f"{file.path}: {found.name!r} has {tensor.shape[0]} rows, no pairs of {heads} heads")
        head_dim = tensor.shape[0] // heads
        index = np.arange(start, stop)
        within = index % head_dim
        taken: np.ndarray = raw[index - within + within % 2 * (head_dim // 2) + within // 2]
        return taken

    def digest(self) -> str:
        """SHA-256 over the names and contents of `files`."""
        whole = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as file:
                whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return whole.hexdigest()

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()


def weight_files(folder: Path) -> list[Path]:
    """The .safetensors files of the model in `folder`: those its index names, else the only one. Raises ModelError."""
    index = read_json(folder / INDEX, _MOST_INDEX)
    if index:
        named = index.get("weight_map")
        names = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
        if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise ModelError(f"{folder / INDEX} names no .safetensors files of its folder; it is damaged")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(
                f"{folder} lacks {missing[0]}, which its index names ({len(missing)} of {len(names)} missing)"
            )
        return [folder / name for name in names]
    inside = sorted(folder.glob("*.safetensors"))
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if len(inside) != 1:
        raise ModelError(
            f"{folder} holds {len(inside)} .safetensors files and no {INDEX} that says which belong together"
        )
    return inside


def gguf_name(name: str) -> str | None:
    """What a GGUF file calls tensor `name` of a folder; None for one that labkit's dense architectures do not have."""
    if (block := _BLOCK.fullmatch(name)) is not None:
        part = _NAMES.get(block[2])
        return None if part is None else f"blk.{int(block[1])}.{part}.{block[3]}"
    stem = _NAMES.get(name.removesuffix(".weight"))
    return f"{stem}.weight" if stem is not None and name.endswith(".weight") else None


def config_metadata(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as a GGUF file's metadata. Raises ModelError for what labkit does not run."""
    kind = config.get("model_type")
    architecture = architecture_named(kind)
    if not architecture.folders:
        raise ModelError(f"labkit reads model_type {kind!r} from GGUF files only")
    if (quantised := config.get("quantization_config")) is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise ModelError(f"its weights are quantised ({str(method)[:40]}); labkit reads BF16, F16 and F32 of a folder")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise ModelError(f"hidden_act is {str(activation)[:40]!r}; labkit's {kind} computes 'silu'")
    keys = {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    }
    given = {key: config.get(word) for key, word in keys.items()}
    for key, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ModelError(f"{keys[key]} is {str(value)[:40]!r}, not a number")
        if value is not None and isinstance(value, int) and not 0 < value < 1 << 31:
            raise ModelError(f"{keys[key]} is {value}, not from 1 to {1 << 31}")
    for key in ("embedding_length", "attention.head_count"):
        if type(given[key]) is not int:
            raise ModelError(f"{keys[key]} is {str(given[key])[:40]!r}, not a whole number, so the shape is unknown")
    made = {f"{kind}.{key}": value for key, value in given.items() if value is not None}
    head_dim = made.get(f"{kind}.attention.key_length", config["hidden_size"] // config["num_attention_heads"])
    made |= {f"{kind}.{key}": value for key, value in _rotation(config, head_dim).items()}
    made |= {f"{kind}.{key}": value for key, value in _window(config, given["block_count"]).items()}
    return {"general.architecture": kind, **made}


def _number(settings: dict[str, Any], key: str, default: float | None = None) -> float:
    value = settings.get(key, default)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise ModelError(f"the rotation's {key} is {repr(value)[:40]}, not a number that can be")
    return value


def _rotation(config: dict[str, Any], head_dim: Any) -> dict[str, Any]:
    """The keys of RoPE, from `rope_parameters`, or `rope_theta` and `rope_scaling` as older folders have them."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(settings, dict):
        raise ModelError(f"its rotation is described by {str(settings)[:40]!r}, not by names and numbers")
    settings = {"rope_theta": config.get("rope_theta", 10000.0)} | settings
    made: dict[str, Any] = {"rope.freq_base": float(_number(settings, "rope_theta"))}
    partial = settings.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial is not None:
        if isinstance(partial, bool) or not isinstance(partial, int | float) or not 0 < partial <= 1:
            raise ModelError(f"partial_rotary_factor is {str(partial)[:40]!r}, not between 0 and 1")
        made["rope.dimension_count"] = int(head_dim * partial)
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind in ("default", None):
        return made
    if kind == "dynamic":
        raise ModelError(
            "rope_type 'dynamic' turns each request by its own length; labkit runs linear, yarn and llama3"
        )
    made |= {"rope.scaling.type": str(kind), "rope.scaling.factor": float(_number(settings, "factor"))}
    if kind in ("yarn", "llama3"):
        original = settings.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        if type(original) is not int:
            raise ModelError(f"original_max_position_embeddings is {str(original)[:40]!r}, which {kind} needs")
        made["rope.scaling.original_context_length"] = original
    if kind == "llama3":
        for end in ("low", "high"):
            made[f"rope.scaling.{end}_freq_factor"] = float(_number(settings, f"{end}_freq_factor"))
    if kind == "yarn":
        made |= _yarn(settings, made["rope.scaling.factor"])
    return made


def _yarn(settings: dict[str, Any], factor: float) -> dict[str, Any]:
    from labkit.ops.rope import yarn_scale

    if settings.get("truncate", True) is not True:
        raise ModelError("rope_parameters say truncate = false; labkit's YaRN ramps between whole dimensions")
    if not 0 < factor < 1e9:
        raise ModelError(f"the rotation's factor is {factor}, not a positive number")
    made: dict[str, Any] = {}
    for end, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        made[f"rope.scaling.yarn_{end}"] = float(_number(settings, end, default) or default)
    attention = settings.get("attention_factor")
    mscale, mscale_all = settings.get("mscale"), settings.get("mscale_all_dim")
    if attention is None and mscale and mscale_all:
        one, all_ = (1 + (yarn_scale(factor) - 1) * _number(settings, key) for key in ("mscale", "mscale_all_dim"))
        attention = one / all_ if all_ else math.nan  # which the configuration refuses
    if attention is not None:
        made["rope.scaling.attn_factor"] = _number({"attention_factor": attention}, "attention_factor") / yarn_scale(
            factor
        )
    return made


def _window(config: dict[str, Any], layers: Any) -> dict[str, Any]:
    """The sliding window and which layers have it: `layer_types`, Qwen's `max_window_layers`, or all of Mistral's."""
    window, kind = config.get("sliding_window"), config["model_type"]
    slides = config.get("use_sliding_window", kind == "mistral")
    if window is None or slides is not True or kind == "llama" or type(layers) is not int or layers > 4096:
        return {}
    if type(window) is not int:
        raise ModelError(f"sliding_window is {str(window)[:40]!r}, not a whole number")
    types, first = config.get("layer_types"), config.get("max_window_layers", 0)
    if types is not None:
        if not isinstance(types, list) or set(map(str, types)) - {"full_attention", "sliding_attention"}:
            raise ModelError(f"layer_types are {str(types)[:80]}; labkit runs full_attention and sliding_attention")
        marks = [each == "sliding_attention" for each in types]
    else:
        marks = [layer >= (first if type(first) is int else 0) for layer in range(layers)]
        marks = [True] * layers if kind == "mistral" else marks
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": np.array(marks, dtype=bool)}
