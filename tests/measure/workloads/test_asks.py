"""Prompts to measure with: exact lengths by the engine's own tokenizer, no shared beginnings, the same from a seed."""

import itertools
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from labkit.audit.detectors.degenerate_output import BASELINES, WORDS, degenerate, measure
from labkit.errors import ParameterError
from labkit.measure.workloads.asks import SHARED, make_asks
from labkit.measure.workloads.content import CONTENTS, content, content_types
from labkit.measure.workloads.hashes import block_hashes, prompt_sha256
from labkit.measure.workloads.images import make_png
from labkit.models.gguf import GgufFile
from labkit.models.tokenizer import Tokenizer
from labkit.runtimes.runtime import Abilities

TINY = Path(__file__).parents[2] / "data" / "tiny"
TYPES = ("code", "copy-edit", "json", "prose", "random")


@pytest.fixture(scope="module", params=["llama31-f32", "odd-q4_1"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    path = TINY / f"{request.param}.gguf"
    return Tokenizer(GgufFile(path).metadata, str(path))


class Words:
    """A runtime's tokenizer in which a cut changes what stands before it: a word of even length is one token, one of odd
    length is a token a character."""

    label = "words"

    def __init__(self, token_prompts: bool = False, tokenizer: bool = True) -> None:
        self.can = Abilities(token_prompts=token_prompts, tokenizer=tokenizer)
        self.known: list[str] = []

    def tokenize(self, text: str) -> list[int]:
        pieces: list[str] = []
        for word in re.findall(r"\w+|\W", text):
            pieces += [word] if len(word) % 2 == 0 else list(word)
        self.known += [piece for piece in dict.fromkeys(pieces) if piece not in self.known]
        return [self.known.index(piece) for piece in pieces]

    def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(self.known[i] for i in ids)


class Pairs(Words):
    """A tokenizer with two tokens a character: no text has an odd number of them."""

    def tokenize(self, text: str) -> list[int]:
        return [number for character in text for number in divmod(ord(character), 256)]

    def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(chr(high * 256 + low) for high, low in zip(ids[::2], ids[1::2], strict=False))


def test_every_content_type_is_found_and_says_what_it_is() -> None:
    assert tuple(content_types()) == TYPES
    for one in CONTENTS.values():
        assert one.about.endswith((".", "cached."))
        assert (one.make.__module__).startswith("labkit.measure.workloads.contents.")
    with pytest.raises(ParameterError, match="'poetry' is not a content type; there are code, copy-edit, json, prose"):
        make_asks(Words(), "poetry", 1, 10, 1)
    with pytest.raises(ParameterError, match="prose is declared already"):
        content("prose")(CONTENTS["prose"].make)


@pytest.mark.parametrize("depth", [0, 100])
@pytest.mark.parametrize("kind", TYPES)
def test_a_nominal_length_is_the_actual_one(tokenizer: Tokenizer, kind: str, depth: int) -> None:
    for ask in make_asks(tokenizer, kind, 3, 161, 8, seed=5, depth=depth, in_front=0):
        ids = tokenizer.encode(ask.prompt) if isinstance(ask.prompt, str) else list(ask.prompt)
        assert len(ids) == 161
        assert ask.about["nominal_prompt_tokens"] == 161
        assert ask.about["sized"] == ("ids" if kind == "random" else "text")
        assert ask.about["prompt_sha256"] == prompt_sha256(ids)
        assert ask.about["block_hashes"] == block_hashes(ids)
        assert len(ask.about["block_hashes"]) == 11  # ten of 16, and one more
        assert ask.about.get("context_tokens", 0) == depth
        assert (ask.tokens, ask.fixed) == (8, True)


@pytest.mark.parametrize("size", [7, 16, 33, 200])
@pytest.mark.parametrize("kind", TYPES)
def test_a_length_is_exact_where_a_cut_changes_what_stands_before_it(kind: str, size: int) -> None:
    runtime = Words()
    for ask in make_asks(runtime, kind, 3, size, 4):
        assert ask.about["sized"] == "text"
        assert len(runtime.tokenize(str(ask.prompt))) == size


def test_a_length_that_no_text_has_is_given_as_ids_or_said_to_be_inexact() -> None:
    by_ids = make_asks(Pairs(token_prompts=True), "prose", 2, 101, 4)
    assert [(ask.about["sized"], len(ask.prompt)) for ask in by_ids] == [("ids", 101)] * 2
    by_text = make_asks(Pairs(), "prose", 2, 101, 4)
    for ask in by_text:
        assert isinstance(ask.prompt, str)
        assert ask.about["sized"] == "inexact"
        assert ask.about["sized_prompt_tokens"] == len(Pairs().tokenize(ask.prompt)) != 101


def test_what_the_engine_puts_in_front_counts(tokenizer: Tokenizer) -> None:
    (ask,) = make_asks(tokenizer, "prose", 1, 50, 4)
    bos = int(tokenizer.add_bos)
    assert len(tokenizer.encode(str(ask.prompt), bos=True)) == 50
    assert len(tokenizer.encode(str(ask.prompt))) == 50 - bos
    (chat,) = make_asks(tokenizer, "prose", 1, 50, 4, chat=True, in_front=12)
    assert len(tokenizer.encode(str(chat.prompt))) == 38
    (drawn,) = make_asks(tokenizer, "random", 1, 50, 4)
    assert len(drawn.prompt) == 50  # nothing is put in front of ids


@pytest.mark.parametrize("kind", TYPES)
def test_no_two_prompts_begin_alike_whatever_their_seed_length_and_depth(kind: str) -> None:
    """A published sweep of prompt lengths began each longer prompt with the shorter one, and read its cache."""
    runtime = Words(token_prompts=True)
    one_call = make_asks(runtime, kind, 40, 48, 4)
    others = [
        make_asks(runtime, kind, 10, size, 4, seed=seed, depth=depth)
        for size, seed, depth in ((48, 1, 0), (96, 0, 0), (96, 0, 48))
    ]
    starts = [tuple(ids_of(runtime, ask)[: SHARED + 1]) for ask in one_call]
    assert len(set(starts)) == 40
    blocks = [ask.about["block_hashes"][0] for ask in itertools.chain(one_call, *others)]
    assert len(set(blocks)) == 70


def ids_of(runtime: Words, ask: object) -> list[int]:
    """A prompt's ids, however it was given."""
    prompt = ask.prompt  # type: ignore[attr-defined]
    return runtime.tokenize(prompt) if isinstance(prompt, str) else list(prompt)


def test_the_same_arguments_make_the_same_prompts(tokenizer: Tokenizer) -> None:
    for kind in TYPES:
        assert make_asks(tokenizer, kind, 2, 60, 4, seed=9) == make_asks(tokenizer, kind, 2, 60, 4, seed=9)
        assert make_asks(tokenizer, kind, 2, 60, 4, seed=9) != make_asks(tokenizer, kind, 2, 60, 4, seed=10)


@pytest.mark.parametrize("kind", ["code", "json", "prose"])
def test_a_text_is_no_more_repetitive_than_the_audit_has_it_of_its_content(kind: str) -> None:
    runtime = Words()
    for ask in make_asks(runtime, kind, 4, 1500, 4):
        found = measure(WORDS.findall(str(ask.prompt)), str(ask.prompt))
        assert not degenerate(*found, BASELINES[kind]), (kind, found)


def test_a_copy_edit_names_a_word_that_its_text_has_and_another_that_it_lacks(tokenizer: Tokenizer) -> None:
    for ask in make_asks(tokenizer, "copy-edit", 3, 700, 4):
        text, _, request = str(ask.prompt).rpartition("\n\n")
        found = re.search(r"with (\w+) renamed to (\w+)", request)
        assert found is not None
        assert found[1] in text
        assert found[2] not in text


def test_random_ids_are_drawn_evenly_from_what_is_text(tokenizer: Tokenizer) -> None:
    (ask,) = make_asks(tokenizer, "random", 1, 4000, 4)
    assert not any(tokenizer.is_control(int(i)) for i in ask.prompt)
    few = {i for i in range(len(tokenizer)) if not tokenizer.is_control(i) and tokenizer.token_bytes(i).isascii()}
    assert set(ask.prompt) <= few
    assert len(set(ask.prompt)) > 0.9 * len(few) * (1 - (1 - 1 / len(few)) ** 4000)


def test_a_prompt_too_short_to_differ_or_out_of_range_is_refused() -> None:
    runtime = Pairs(token_prompts=True)
    with pytest.raises(ParameterError, match="300 prompts of 1 tokens cannot all begin otherwise"):
        make_asks(runtime, "prose", 300, 1, 4, form="ids")
    for wrong, said in (
        ({"count": 0}, "count: 0"), ({"prompt": 0}, "prompt: 0 tokens"), ({"depth": 10}, "depth: 10 of 10 tokens"),
        ({"in_front": 10}, "in_front: 10 tokens leave none"), ({"form": "bytes"}, "form: 'bytes'"),
        ({"images": 1, "form": "ids"}, "images go with text"), ({"tokens": 0}, "a request for 0 tokens"),
    ):  # fmt: skip
        given = {"count": 1, "prompt": 10, "tokens": 4} | wrong
        with pytest.raises(ParameterError, match=re.escape(said)):
            make_asks(runtime, "prose", **given)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="takes no token ids"):
        make_asks(Words(), "prose", 1, 10, 4, form="ids")
    with pytest.raises(ParameterError, match="words has no tokenizer to size prompts with"):
        make_asks(Words(tokenizer=False), "prose", 1, 10, 4)
    with pytest.raises(ParameterError, match="str is no tokenizer"):
        make_asks("smollm2", "prose", 1, 10, 4)


def test_pictures_go_with_a_text_and_are_what_they_say() -> None:
    (ask,) = make_asks(Words(token_prompts=True), "prose", 1, 40, 4, images=2, image_size=(40, 24), chat=True)
    assert (ask.about["images"], ask.about["image_pixels"]) == (2, 960)
    assert ask.images[0] != ask.images[1]
    png = ask.images[0]
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, kinds, data = 8, [], b""
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(kind + body)
        kinds.append(kind)
        data = body if kind == b"IDAT" else data
        at += 12 + length
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack_from(">IIBB", png, 16) == (40, 24, 8, 2)
    rows = zlib.decompress(data)
    assert len(rows) == 24 * (1 + 40 * 3)
    assert {rows[i * 121] for i in range(24)} == {0}  # no filter
    assert make_png(40, 24, 1) == make_png(40, 24, 1) != make_png(40, 24, 2)
    with pytest.raises(ParameterError, match="width: 0 pixels"):
        make_png(0, 24)
