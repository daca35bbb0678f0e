"""Makes tests/data/tiny: small random llama models as GGUF files, each with reference logits from transformers.

Not run by the tests, which need only its output. To run it again, from the repository's root:
    python -m venv oracle
    oracle/bin/pip install torch==2.13.0 transformers==5.24.0 gguf==0.19.0 tokenizers==0.23.3 numpy==2.4.6
    PYTHONPATH=. oracle/bin/python tests/data/make_tiny.py tests/data/tiny
Float32, eager attention, one thread, fixed seeds: bit-stable on one machine with these versions on Python 3.11.

Per model and type, NAME-TYPE.gguf and NAME-TYPE.npz, which holds
    prompt [T] int64 · greedy [N] int64 · step_logits [N, V] f32, behind each greedy id · gap [N] f32, best less second
    hidden [L+1, T, H] f32 (F32 files): embeddings, then each block's output; the last is after the final norm
The reference of a quantised file is transformers on the same weights dequantised, all else in float32.
"""

import json
import math
import os
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, trainers
from tokenizers import pre_tokenizers as pre
from transformers import LlamaConfig, LlamaForCausalLM

from labkit.models.tokenizer import PRE_TOKENIZERS

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
STEPS, PROMPT = 24, 48
SPECIAL = ["<pad>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1e5}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
# name: (hidden, layers, heads, kv heads, head size, ffn, vocabulary, tied, rope, pre-tokenizer, types)
MODELS = {
    "llama": (64, 3, 4, 2, 32, 192, 768, True, DEFAULT_ROPE, "smollm", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]),
    "llama31": (64, 2, 4, 1, 32, 160, 768, False, LLAMA3_ROPE, "llama-bpe", ["F32"]),
    "odd": (96, 2, 3, 1, 32, 160, 515, False, DEFAULT_ROPE, "gpt-2", ["F32", "Q8_0", "Q4_1"]),
    "odd24": (96, 2, 6, 2, 24, 100, 515, False, DEFAULT_ROPE, "qwen2", ["F32"]),
}


def spice(model: LlamaForCausalLM, tied: bool) -> None:
    """Random weights with some structure: O(1) projections, uneven norms, logits spread far beyond rounding.

    A tied model gets a small embedding and louder blocks, or it would only repeat its last token.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
            if "embed_tokens" in name or "lm_head" in name:
                weight.copy_(noise * (0.25 if tied else 0.6))
            elif weight.ndim == 1:
                weight.add_(noise * 0.15)
            else:
                loud = 4.0 if tied and name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                weight.copy_(noise * loud / math.sqrt(weight.shape[-1]))


def reference(model: LlamaForCausalLM, prompt: torch.Tensor, with_hidden: bool) -> dict[str, np.ndarray]:
    """Greedy decoding through the cache, and the logits behind each step."""
    with torch.no_grad():
        output = model(input_ids=prompt[None], output_hidden_states=True, use_cache=True)
        hidden = torch.stack([each[0] for each in output.hidden_states]).numpy()
        greedy, steps = [], []
        for _ in range(STEPS):
            steps.append(output.logits[0, -1].numpy())
            greedy.append(int(steps[-1].argmax()))
            output = model(
                input_ids=torch.tensor([[greedy[-1]]]), past_key_values=output.past_key_values, use_cache=True
            )
    logits = np.stack(steps)
    best = np.sort(logits, axis=-1)
    found = {
        "prompt": prompt.numpy(),
        "greedy": np.array(greedy),
        "step_logits": logits,
        "gap": best[:, -1] - best[:, -2],
    }
    return found | ({"hidden": hidden} if with_hidden else {})


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q or K from rotated halves to rotated neighbours, as llama.cpp's converter does for this architecture."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def rope_factors(rope: dict, head_dim: int) -> np.ndarray:
    """Llama 3.1's divisors of the rotation frequencies, as llama.cpp's converter writes them."""
    factors, old = [], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim):
        length = 2 * math.pi / frequency
        if length < old / high:
            factors.append(1.0)
        elif length > old / low:
            factors.append(rope["factor"])
        else:
            smooth = (old / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return NAMES[stem] + ".weight"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.weight"


def make_tokenizer(vocabulary: int, name: str) -> tuple[Tokenizer, list[str], list[str]]:
    """A byte-level BPE trained on the standard library's sources, its tokens and its merges."""
    rule = PRE_TOKENIZERS[name]
    cut = [pre.Digits(individual_digits=True)] if rule.single_digits else []
    cut.append(pre.Split(Regex(rule.expression), "isolated"))
    cut.append(pre.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre.Sequence(cut), decoders.ByteLevel()
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(path) for path in sources[:40]], trainer)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(state["vocab"].items(), key=lambda item: item[1])]
    assert len(tokens) == vocabulary
    return tokenizer, tokens, [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]


def type_of(name: str, weight: np.ndarray, chosen: str) -> str:
    """Norms stay F32; the table of a Q4_1 file is Q8_0, as in the SmolLM2 file of the catalogue."""
    if weight.ndim == 1:
        return "F32"
    return "Q8_0" if chosen == "Q4_1" and name == "token_embd.weight" else chosen


def make(folder: Path, name: str) -> None:
    hidden, layers, heads, kv_heads, head_dim, ffn, vocabulary, tied, rope, rule, types = MODELS[name]
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_parameters=dict(rope),
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).float().eval()
    spice(model, tied)
    truth = {key: value.detach().numpy().copy() for key, value in model.named_parameters()}
    prompt = torch.tensor(np.random.default_rng(3).integers(len(SPECIAL), vocabulary, PROMPT))
    _, tokens, merges = make_tokenizer(vocabulary, rule)
    for chosen in types:
        path = folder / f"{name}-{chosen.lower()}.gguf"
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_name(f"tiny {name}")
        writer.add_block_count(layers)
        writer.add_context_length(2048)
        writer.add_embedding_length(hidden)
        writer.add_feed_forward_length(ffn)
        writer.add_head_count(heads)
        writer.add_head_count_kv(kv_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(vocabulary)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(rule)
        writer.add_token_list(tokens)
        writer.add_token_types([3] * len(SPECIAL) + [1] * (vocabulary - len(SPECIAL)))
        writer.add_token_merges(merges)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(0)
        writer.add_add_bos_token(rule == "llama-bpe")
        writer.add_chat_template(CHATML)
        if rope["rope_type"] == "llama3":
            writer.add_tensor("rope_freqs.weight", rope_factors(rope, head_dim))
        with torch.no_grad():
            for key, weight in model.named_parameters():
                values, name_in_file = truth[key], gguf_name(key)
                turned = {"attn_q": heads, "attn_k": kv_heads}.get(name_in_file.split(".")[-2])
                values = permute(values, turned) if turned else values
                kind = gguf.GGMLQuantizationType[type_of(name_in_file, values, chosen)]
                stored = gguf.quants.quantize(values, kind)
                writer.add_tensor(name_in_file, stored, raw_dtype=kind)
                back = gguf.quants.dequantize(stored, kind).reshape(values.shape)
                weight.copy_(torch.from_numpy(unpermute(back, turned) if turned else back))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found = reference(model, prompt, with_hidden=chosen == "F32")
        np.savez_compressed(path.with_suffix(".npz"), **found)
        distinct, size = len(set(found["greedy"].tolist())), path.stat().st_size
        print(f"{path.name:18} {size:8} bytes, least gap {found['gap'].min():.4f}, {distinct} distinct of {STEPS}")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[2:] or MODELS:
        make(out, each)
