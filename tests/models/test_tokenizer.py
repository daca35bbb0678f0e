"""The tokenizer: ids equal to llama.cpp's, text restored, and a detokeniser that never breaks a character."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from crafted_gguf import DATA, TINY

from labkit.errors import ModelError, ParameterError
from labkit.models.gguf import GgufFile
from labkit.models.tokenizer import PRE_TOKENIZERS, Tokenizer

EXPECTED: dict[str, Any] = json.loads((DATA / "token_ids.json").read_text())
FILES = {"llama": "llama-q4_0", "llama31": "llama31-f32", "odd": "odd-q4_1", "odd24": "odd24-f32"}


@pytest.fixture(scope="module")
def tokenizers(smollm2_vocabulary: Path) -> dict[str, Tokenizer]:
    """The five vocabularies of token_ids.json, one for each splitting rule and SmolLM2's own."""
    paths = {name: TINY / f"{file}.gguf" for name, file in FILES.items()} | {"smollm2": smollm2_vocabulary}
    return {name: Tokenizer(GgufFile(path).metadata, str(path)) for name, path in paths.items()}


@pytest.fixture(scope="module")
def smollm2(tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers["smollm2"]


@pytest.mark.parametrize("special", [False, True], ids=["plain", "special"])
@pytest.mark.parametrize("name", [*FILES, "smollm2"])
def test_ids_equal_llama_cpps(tokenizers: dict[str, Tokenizer], name: str, special: bool) -> None:
    expected = EXPECTED[name]["special" if special else "plain"]
    for text, ids in zip(EXPECTED["texts"], expected, strict=True):
        assert tokenizers[name].encode(text, special=special) == ids, repr(text)


def test_the_prompts_of_the_reference_encode_to_its_ids(smollm2: Tokenizer) -> None:
    prompts = json.loads((DATA / "smollm2_greedy.json").read_text())["prompts"]
    for prompt in prompts.values():
        assert smollm2.encode(prompt["prompt"], special=True) == prompt["prompt_ids"]
        reference = prompt["hf_fp32_dequant"]
        assert smollm2.decode(reference["ids"], special=True) == reference["text"]


@pytest.mark.parametrize("name", FILES)
def test_any_text_comes_back_unchanged(tokenizers: dict[str, Tokenizer], name: str) -> None:
    for text in EXPECTED["texts"]:  # these vocabularies hold all 256 bytes; SmolLM2's lacks some
        ids = tokenizers[name].encode(text)
        assert tokenizers[name].decode(ids) == text
        stream = tokenizers[name].stream()
        assert "".join(stream.push(each) for each in ids) == text
        assert stream.flush() == ""


def test_control_tokens_are_parsed_only_when_asked_and_shown_only_when_asked(smollm2: Tokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>"
    parsed, plain = smollm2.encode(text, special=True), smollm2.encode(text)
    assert (parsed[0], parsed[-1]) == (1, 2)
    assert {1, 2}.isdisjoint(plain)
    assert smollm2.decode(plain) == text
    assert smollm2.decode(parsed) == "user\nhi"
    assert smollm2.decode(parsed, special=True) == text
    assert smollm2.token_bytes(2) == b""
    assert smollm2.token_text(2) == "<|im_end|>"
    assert smollm2.is_control(2)
    assert not smollm2.is_control(100)


def test_end_ids_hold_the_files_own_and_other_ends_of_text(tokenizers: dict[str, Tokenizer]) -> None:
    assert (tokenizers["smollm2"].bos_id, tokenizers["smollm2"].eos_ids) == (1, {0, 2})
    assert (tokenizers["llama"].bos_id, tokenizers["llama"].eos_ids) == (1, {2, 3, 5})
    assert [tokenizers[name].add_bos for name in ("smollm2", "llama", "llama31")] == [False, False, True]


def test_bos_is_put_in_front_once_where_the_file_asks(tokenizers: dict[str, Tokenizer]) -> None:
    asks, does_not = tokenizers["llama31"], tokenizers["llama"]
    assert asks.encode("x", bos=True) == [1, *asks.encode("x")]
    assert asks.encode("<s>x", special=True, bos=True) == [1, *asks.encode("x")]
    assert asks.encode("", bos=True) == [1]
    assert does_not.encode("x", bos=True) == does_not.encode("x")


def test_random_ids_stream_to_what_they_decode_to(tokenizers: dict[str, Tokenizer]) -> None:
    chooser = random.Random(5)
    for tokenizer in tokenizers.values():
        for _ in range(200):
            ids = [chooser.randrange(min(len(tokenizer), 600)) for _ in range(chooser.randrange(40))]
            stream = tokenizer.stream()
            assert "".join(stream.push(each) for each in ids) + stream.flush() == tokenizer.decode(ids)


def test_only_an_unfinished_character_is_held_back(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer, stream = tokenizers["odd"], tokenizers["odd"].stream()
    ids = tokenizer.encode("a🙂b")
    assert [stream.push(each) for each in ids] == ["a", "", "", "", "🙂", "b"]
    assert [stream.push(each) for each in ids[:3]] == ["a", "", ""]
    assert stream.flush() == "�"
    assert stream.push(ids[0]) == "a"
    broken = [ids[1], ids[0]]  # the first byte of a character, then a letter
    assert [stream.push(each) for each in broken] == ["", "�a"]


@pytest.mark.parametrize("token_id", [-1, 768, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(tokenizers: dict[str, Tokenizer], token_id: int) -> None:
    for use in (tokenizers["llama"].stream().push, tokenizers["llama"].token_bytes, tokenizers["llama"].token_text):
        with pytest.raises(ParameterError, match=f"{token_id} is not a token id; the vocabulary has 768"):
            use(token_id)


@pytest.mark.parametrize("prompt", [None, b"bytes", 3, ["list"]])
def test_what_is_no_text_is_refused(tokenizers: dict[str, Tokenizer], prompt: Any) -> None:
    with pytest.raises(ParameterError, match="a prompt must be text"):
        tokenizers["llama"].encode(prompt)


def test_a_lone_surrogate_is_refused(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(ParameterError, match="lone surrogate at character 2"):
        tokenizers["llama"].encode("ab\ud800")


def test_a_token_is_streamed_in_under_three_microseconds(smollm2: Tokenizer) -> None:
    ids = smollm2.encode(" ".join(EXPECTED["texts"])) * 10
    took = []
    for _ in range(5):
        stream = smollm2.stream()
        start = time.thread_time()
        for each in ids:
            stream.push(each)
        took.append((time.thread_time() - start) / len(ids) * 1e6)
    print(f"{min(took):.2f} µs a token, multi-byte texts included")
    assert min(took) < 3


def test_every_splitting_rule_is_one_tokenizers_compiles(tokenizers: dict[str, Tokenizer]) -> None:
    metadata = dict(GgufFile(TINY / "llama-q4_0.gguf").metadata)
    for name in PRE_TOKENIZERS:
        tokenizer = Tokenizer(metadata | {"tokenizer.ggml.pre": name}, "test")
        assert tokenizer.decode(tokenizer.encode("It's 2026: 12345  naïve\n\n🙂")) == "It's 2026: 12345  naïve\n\n🙂"


@pytest.mark.parametrize(
    ("key", "content", "reason"),
    [
        ("model", None, "has no tokenizer"),
        ("model", "llama", r"llama \(SentencePiece\) is not among those labkit rebuilds: gpt2"),
        ("model", "bert", "tokenizer bert is not among"),
        ("pre", None, "pre-tokenizer 'None' is not among those labkit knows: codeshell, .*smollm"),
        ("pre", "tekken", "pre-tokenizer 'tekken' is not among"),
        ("tokens", None, "lacks tokenizer.ggml.tokens"),
        ("merges", None, "lacks tokenizer.ggml.merges"),
        ("merges", 7, "lacks tokenizer.ggml.merges"),
        ("token_type", "x", "token_type is not a whole number for each"),
        ("bos_token_id", 768, "bos_token_id is 768, not one of 768"),
        ("eos_token_id", -1, "eos_token_id is -1"),
    ],
)
def test_a_tokenizer_labkit_cannot_rebuild_is_one_line(key: str, content: Any, reason: str) -> None:
    metadata = dict(GgufFile(TINY / "llama-q4_0.gguf").metadata)
    metadata[f"tokenizer.ggml.{key}"] = content
    with pytest.raises(ModelError, match=reason):
        Tokenizer({name: each for name, each in metadata.items() if each is not None}, "test.gguf")


@pytest.mark.parametrize(
    ("key", "texts", "reason"),
    [
        ("merges", ["nosuch pieces"], "merges do not fit its vocabulary"),
        ("merges", ["nospace"], "merges do not fit its vocabulary"),
        ("tokens", ["a"] * 768, "token 'a' stands in the vocabulary twice"),
        ("tokens", ["a"], "for each of 1 tokens"),
    ],
)
def test_a_damaged_vocabulary_is_one_line(written: Any, key: str, texts: list[str], reason: str) -> None:
    metadata = dict(GgufFile(TINY / "llama-q4_0.gguf").metadata)
    metadata[f"tokenizer.ggml.{key}"] = GgufFile(written({key: texts})).metadata[key]
    with pytest.raises(ModelError, match=reason):
        Tokenizer(metadata, "test.gguf").encode("x")
