"""Makes the files of tests/data/tiny that are not plain llama: Qwen2, Qwen3, Mistral, Gemma 3, YaRN, and folders of safetensors.

Not run by the tests, which need only its output. To run it again, in the environment that make_tiny.py describes:
    PYTHONPATH=. oracle/bin/python tests/data/make_tiny_dense.py tests/data/tiny
NAME.gguf (F32) or the folder NAME (as `save_pretrained` leaves it, with tokenizer.json), and NAME.npz with
    prompt [T] int64 · greedy [N] int64 · step_logits [N, V] f32, behind each greedy id · gap [N] f32, best less second
The reference of a folder is transformers on the weights as its type rounds them, all else in float32.
"""

import copy
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from make_tiny import (
    CHATML,
    DEFAULT_ROPE,
    LLAMA3_ROPE,
    PROMPT,
    SPECIAL,
    STEPS,
    gguf_name,
    make_tokenizer,
    permute,
    reference,
    spice,
)

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
}
GEMMA = {
    "tie_word_embeddings": True,
    "head_dim": 32,
    "num_key_value_heads": 1,
    "num_hidden_layers": 6,
    "intermediate_size": 64,
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    },
}
VOCABULARY = 515
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": VOCABULARY}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
SHAPE |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
# name: (class, what its configuration adds, type of a folder's weights, or None for a GGUF file)
MODELS = {
    "qwen2-f32": ("Qwen2", {}, None),
    "qwen3-f32": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 32}, None),
    "qwen3-yarn-f32": ("Qwen3", {"head_dim": 32, "rope_parameters": YARN_ROPE}, None),
    "mistral-f32": ("Mistral", {"head_dim": 32, "sliding_window": 16}, None),
    "gemma3-f32": ("Gemma3", GEMMA, None),
    "llama3-folder": ("Llama", {"head_dim": 32, "rope_parameters": LLAMA3_ROPE}, "float16"),
    "qwen2-folder": ("Qwen2", {}, "float32"),
    "qwen3-folder": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 32}, "bfloat16"),
    "mistral-folder": ("Mistral", {"head_dim": 32, "sliding_window": 16}, "bfloat16"),
}
# in a GGUF file: architecture, whether its rows of Q and K are permuted
KINDS = {
    "Qwen2": ("qwen2", False),
    "Qwen3": ("qwen3", False),
    "Gemma3": ("gemma3", False),
    "Mistral": ("llama", True),
    "Llama": ("llama", True),
}
GEMMA_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PARTS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def name_in_gguf(name: str, parts: dict[str, str]) -> str:
    """As make_tiny's, with biases and the norms of heads."""
    stem, _, kind = name.rpartition(".")
    for part, short in (PARTS | parts).items():
        if stem.endswith(part):
            return f"blk.{stem.split('.')[2]}.{short}.{kind}"
    return gguf_name(f"{stem}.weight").removesuffix("weight") + kind


def make(folder: Path, name: str) -> None:
    kind, more, dtype = MODELS[name]
    text = "Text" if kind == "Gemma3" else ""
    settings = SHAPE | {"tie_word_embeddings": False, "rope_parameters": DEFAULT_ROPE} | more
    config = getattr(transformers, f"{kind}{text}Config")(**settings)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    spice(model, config.tie_word_embeddings)
    generator = torch.Generator().manual_seed(3)
    if kind == "Gemma3":  # which scales its embedding and norms its branches: a table that does not drown them
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(0.2)
    with torch.no_grad():  # a bias that a reader who left it out would not get away with
        for key, weight in sorted(model.named_parameters()):
            if key.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=generator))
    tokenizer, tokens, merges = make_tokenizer(VOCABULARY, "qwen2")
    path = folder / f"{name}.gguf"
    if dtype is None:
        write_gguf(path, name, model, tokens, merges)
    else:
        path = folder / name
        rounded = getattr(torch, dtype)
        copy.deepcopy(model).to(rounded).save_pretrained(
            path
        )  # a copy: the frequencies of the rotation are rounded with it
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.to(rounded).float())
        tokenizer.save(str(path / "tokenizer.json"))
        names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": CHATML}
        (path / "tokenizer_config.json").write_text(json.dumps(names, indent=1) + "\n")
    prompt = torch.tensor(np.random.default_rng(3).integers(len(SPECIAL), VOCABULARY, PROMPT))
    found = reference(model, prompt, with_hidden=False)
    np.savez_compressed(folder / f"{name}.npz", **found)
    size = path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.iterdir())
    distinct = len(set(found["greedy"].tolist()))
    print(f"{name:18} {size:8} bytes, least gap {found['gap'].min():.4f}, {distinct} distinct of {STEPS}")


def write_gguf(
    path: Path, name: str, model: transformers.PreTrainedModel, tokens: list[str], merges: list[str]
) -> None:
    config = model.config
    architecture, permuted = KINDS[MODELS[name][0]]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name(f"tiny {name}")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if "head_dim" in MODELS[name][1]:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if window := getattr(config, "sliding_window", None):
        writer.add_sliding_window(window)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads} if permuted else {}
    for key, weight in model.named_parameters():
        values, name_in_file = (
            weight.detach().numpy(),
            name_in_gguf(key, GEMMA_PARTS if architecture == "gemma3" else {}),
        )
        if architecture == "gemma3" and values.ndim == 1:
            values = values + 1  # as llama.cpp's converter does
        turned = heads.get(name_in_file.split(".")[-2])
        writer.add_tensor(name_in_file, permute(values, turned) if turned else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for each in sys.argv[2:] or MODELS:
        make(out, each)
