"""The tokenizer a GGUF file describes, rebuilt with `tokenizers`, and an incremental detokeniser.

Byte-level BPE only: the vocabulary and merges come from the file, the splitting expression from the name in
`tokenizer.ggml.pre` (llama.cpp's `llama-vocab.cpp`). Ids agree with llama.cpp's.
"""

import codecs
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labkit.errors import ModelError, ParameterError
from labkit.models.gguf import StringArray

if TYPE_CHECKING:
    import tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

# Token types of `tokenizer.ggml.token_type`
NORMAL, _UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
# Texts that end a generation wherever they are control tokens, as in llama.cpp
_END_TEXTS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<EOT>",
        "<|end▁of▁sentence|>",
        "</s>",
        "<eos>",
        "<end_of_utterance>",
    ]
)


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before the merges: an expression, whether each digit stands alone, and the file's defaults."""

    expression: str
    single_digits: bool = False
    ignore_merges: bool = False  # a piece that is itself a token is taken whole
    add_bos: bool = False  # where the file does not say


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(_GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell"), PreTokenizer(_GPT2, single_digits=True)
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), PreTokenizer(_QWEN2)),
    "qwen35": PreTokenizer(_QWEN35),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True)),
}


def pre_tokenizer_named(expression: str | None, single_digits: bool, ignore_merges: bool) -> str | None:
    """The name of the pre-tokenizer that cuts so, or None."""
    wanted = (expression, single_digits, ignore_merges)
    for name, known in PRE_TOKENIZERS.items():
        if (known.expression, known.single_digits, known.ignore_merges) == wanted:
            return name
    return None


def _byte_alphabet() -> dict[str, int]:
    """The character byte-level BPE writes each byte as (GPT-2's `bytes_to_unicode`), inverted."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTES = _byte_alphabet()


class Tokenizer:
    """Text to token ids and back, as the model file defines it.

    `bos_id` (or None), `eos_ids` (every id that ends a generation) and `add_bos` (whether prompts start with `bos_id`)
    are the file's. Raises ModelError where the file's tokenizer is damaged or of a kind labkit does not rebuild.
    """

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        tokens, types, merges, pre = _read_vocabulary(metadata, where)
        self._tokens, self._types = tokens, types
        self._pre = PRE_TOKENIZERS[pre]
        self._merges, self._where = merges, where
        self.pre = pre
        self.bos_id = self._id_at(metadata, "bos_token_id", where)
        self.eos_ids = self._end_ids(metadata, where)
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", self._pre.add_bos)) and self.bos_id is not None
        self._pieces = _Pieces(self)

    @cached_property
    def _plain(self) -> "tokenizers.Tokenizer":
        return _build(self._tokens, self._types, self._merges, self._pre, self._where, special=False)

    @cached_property
    def _special(self) -> "tokenizers.Tokenizer":
        return _build(self._tokens, self._types, self._merges, self._pre, self._where, special=True)

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"<Tokenizer {self.pre}: {len(self)} tokens, bos {self.bos_id}, eos {sorted(self.eos_ids)}>"

    def encode(self, text: str, special: bool = False, bos: bool = False) -> list[int]:
        """Ids of `text`. `special`: the texts of control tokens in it become their ids; else they are plain text.

        `bos`: put `bos_id` in front where the file asks for it and the text does not already begin with it.
        Raises ParameterError for what is not valid Unicode text.
        """
        if not isinstance(text, str):
            raise ParameterError(f"a prompt must be text, not {type(text).__name__}")
        try:
            ids: list[int] = (self._special if special else self._plain).encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):  # which of them depends on the version of `tokenizers`
            place = next(i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff")
            raise ParameterError(f"the prompt holds a lone surrogate at character {place}; it is not text") from None
        if bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Text of `ids`; control tokens are left out unless `special`. Bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(each, special) for each in ids).decode("utf-8", "replace")

    def stream(self) -> "Detokeniser":
        """A new incremental detokeniser."""
        return Detokeniser(self._pieces)

    def token_bytes(self, token_id: int, special: bool = False) -> bytes:
        """The bytes `token_id` adds to a text: none for a control token, unless `special`. ParameterError if no id."""
        if not 0 <= token_id < len(self._tokens):
            raise ParameterError(f"{token_id} is not a token id; the vocabulary has {len(self._tokens)}")
        text, kind = self._tokens[token_id], self._types[token_id]
        if kind in (CONTROL, _UNKNOWN):
            return text.encode() if special else b""
        if kind == USER_DEFINED:
            return text.encode()
        try:
            return bytes([_BYTES[character] for character in text])
        except KeyError:  # such as the padding tokens converters append
            return text.encode()

    def token_text(self, token_id: int) -> str:
        """How to show one token to a person: its text, control tokens included, broken UTF-8 as U+FFFD."""
        return self.token_bytes(token_id, special=True).decode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        """True for ids that stand for no text, such as the end of a turn."""
        return self._types[token_id] in (CONTROL, _UNKNOWN)

    def _id_at(self, metadata: Mapping[str, Any], key: str, where: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self._tokens):
            raise ModelError(f"{where}: tokenizer.ggml.{key} is {value!r}, not one of {len(self._tokens)} token ids")
        return value

    def _end_ids(self, metadata: Mapping[str, Any], where: str) -> set[int]:
        named = (self._id_at(metadata, key, where) for key in ("eos_token_id", "eot_token_id", "eom_token_id"))
        ids = {each for each in named if each is not None}
        for token_id, (text, kind) in enumerate(zip(self._tokens, self._types, strict=True)):
            if kind == CONTROL and text in _END_TEXTS:
                ids.add(token_id)
        return ids


class _Pieces(dict[int, "str | None"]):
    """Id → its text where that is whole UTF-8 by itself, else None; filled as ids are met."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str | None:
        try:
            piece: str | None = self.tokenizer.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            piece = None
        self[token_id] = piece
        return piece


class Detokeniser:
    """Turns ids into text one at a time, holding back only the bytes of a character that is not yet whole."""

    __slots__ = ("_decoder", "_held", "_pieces")

    def __init__(self, pieces: _Pieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = False

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes: "" while a character is unfinished. ParameterError if it is no id."""
        piece = self._pieces[token_id]
        if piece is not None and not self._held:
            return piece
        text = self._decoder.decode(self._pieces.tokenizer.token_bytes(token_id))
        self._held = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """What is still held back, unfinished bytes as U+FFFD; the detokeniser is then as new."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._held = False
        return text


def _read_vocabulary(metadata: Mapping[str, Any], where: str) -> tuple[list[str], list[int], list[str], str]:
    """Tokens, their types, merges and pre-tokenizer name, each checked. Raises ModelError."""
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelError(f"{where} has no tokenizer; use a file converted with its vocabulary")
    if model != "gpt2":
        kind = "llama (SentencePiece)" if model == "llama" else str(model)[:40]
        raise ModelError(f"{where}: tokenizer {kind} is not among those labkit rebuilds: gpt2 (byte-level BPE)")
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelError(f"{where}: pre-tokenizer {str(pre)[:40]!r} is not among those labkit knows: {known}")
    lists = []
    for key in ("tokens", "merges"):
        array = metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(array, StringArray | tuple):
            raise ModelError(f"{where} lacks tokenizer.ggml.{key}, or it is not a list of texts; the file is damaged")
        lists.append(list(array))
    tokens, merges = lists
    if not tokens:
        raise ModelError(f"{where}: tokenizer.ggml.tokens is empty; the file is damaged")
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return tokens, [1] * len(tokens), merges, str(pre)
    if getattr(getattr(types, "dtype", None), "kind", "") not in ("i", "u") or len(types) != len(tokens):
        raise ModelError(f"{where}: tokenizer.ggml.token_type is not a whole number for each of {len(tokens)} tokens")
    return tokens, types.tolist(), merges, str(pre)


def _build(
    tokens: list[str], types: list[int], merges: list[str], pre: PreTokenizer, where: str, special: bool
) -> "tokenizers.Tokenizer":
    """A `tokenizers` object that parses control tokens in the text, or does not; user-defined ones it always does."""
    from tokenizers import AddedToken, Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for token_id, token in enumerate(tokens) if vocabulary[token] != token_id)
        raise ModelError(f"{where}: token {twice[:40]!r} stands in the vocabulary twice; the file is damaged")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for left, right in pairs:  # before `tokenizers` looks, which may panic
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise ModelError(f"{where}: its merges do not fit its vocabulary: {left[:40]!r} and {right[:40]!r}")
    try:
        backend = Backend(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre.ignore_merges))
    except Exception as error:  # `tokenizers` raises a bare Exception
        raise ModelError(f"{where}: its merges do not fit its vocabulary: {str(error)[:120]}") from None
    cut: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.single_digits else []
    if pre.expression is _GPT2:
        cut.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    else:
        cut.append(pre_tokenizers.Split(Regex(pre.expression), "isolated"))
        cut.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cut)
    parsed = (USER_DEFINED, CONTROL, _UNKNOWN) if special else (USER_DEFINED,)
    backend.add_tokens(
        [
            AddedToken(text, normalized=False)
            for text, kind in zip(tokens, types, strict=True)
            if kind in parsed and text
        ]
    )
    return backend
