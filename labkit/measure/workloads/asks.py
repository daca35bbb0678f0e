"""Requests to measure with: so many prompts of one content type and one exact length, no two of which begin alike."""

import random
from collections.abc import Sequence
from typing import Any, Literal

from labkit.errors import ParameterError
from labkit.measure.workloads.content import Content, Draft, content_type, content_types
from labkit.measure.workloads.hashes import block_hashes, prompt_sha256
from labkit.measure.workloads.images import make_png
from labkit.measure.workloads.sizing import Coder, coder_of, fit, long_enough
from labkit.runtimes.runtime import Ask, Progress, no_progress

Form = Literal["auto", "text", "ids"]
SHARED = 8  # leading tokens that two prompts may have alike, at the most
REDRAWS = 100
MOST_PROMPT = 1 << 20
QUESTION_SHARE = 2  # a question longer than half of what stands behind the context is left out


def make_asks(
    tokenizer: Any,
    content: str,
    count: int,
    prompt: int,
    tokens: int,
    seed: int = 0,
    *,
    depth: int = 0,
    form: Form = "auto",
    in_front: int | None = None,
    fixed: bool = True,
    chat: bool = False,
    temperature: float = 0.0,
    images: int = 0,
    image_size: tuple[int, int] = (512, 512),
    progress: Progress = no_progress,
) -> list[Ask]:
    """`count` requests of `prompt` tokens each, for `tokens` tokens of output, the same for the same arguments.

    `tokenizer`: a `Runtime`, a `Model` or a `Tokenizer`; the length is exact by it. `prompt` counts all of the prompt:
    `depth` of them are a context before the question, of the same content. `in_front`: tokens that the engine puts
    before a text by itself (a beginning-of-text token, a chat template), which count too; known of a `Tokenizer`, else 0.
    `form`: *text* or token *ids*; *auto* is text where it can be exact and ids where the runtime takes them and it
    cannot, or where the content is *random*. Every prompt, of every seed, length and depth, begins otherwise: two of one
    call share at most 8 tokens, so that no cache of prefixes holds one; give each repetition a seed of its own.
    *random* draws from the whole vocabulary of a `Model` or `Tokenizer`; a `Runtime` does not tell its own, and the ids of
    all content types' texts stand for it (`about["vocabulary"]` says how many).
    `images` pictures of `image_size` go with each, for endpoints that take them.

    `about` of each says: content, seed, number, nominal_prompt_tokens, context_tokens, prompt_sha256, block_hashes, and
    sized (`text` or `ids`: exact; `inexact` where only text is taken and none was found, with sized_prompt_tokens).
    ParameterError for an unknown content type, a size out of range, or prompts too short to differ."""
    kind, coder = content_type(content), coder_of(tokenizer)
    front = coder.in_front if in_front is None else in_front
    check_sizes(count, prompt, depth, front, form, coder)
    if images and form == "ids":
        raise ParameterError("images go with text: leave form at auto, or give form='text'")
    as_ids = form == "ids" or (form == "auto" and content == "random" and coder.takes_ids and not (chat or images))
    vocabulary = (coder.vocabulary or drawn_vocabulary(coder)) if content == "random" else ()
    begun: set[tuple[int, ...]] = set()
    found = []
    for number in range(count):
        for redraw in range(REDRAWS):
            chance = random.Random(f"{seed} {content} {prompt} {depth} {tokens} {number} {redraw}")
            text, ids = draw(kind, coder, chance, vocabulary, prompt - (0 if as_ids else front), depth, as_ids)
            if (start := tuple(ids[: SHARED + 1])) not in begun:
                break
        else:
            raise ParameterError(
                f"{count} prompts of {prompt} tokens cannot all begin otherwise: give fewer, or longer ones"
            )
        begun.add(start)
        given: str | tuple[int, ...] = tuple(ids) if text is None else text
        sized = "ids" if text is None else "text" if len(ids) == prompt - front else "inexact"
        if sized == "inexact" and form == "auto" and coder.takes_ids and not (chat or images):
            text, ids = draw(kind, coder, chance, vocabulary, prompt, depth, True)
            given, sized = tuple(ids), "ids"
        about: dict[str, Any] = {
            "content": content, "seed": seed, "number": number, "nominal_prompt_tokens": prompt, "sized": sized,
            "prompt_sha256": prompt_sha256(ids), "block_hashes": block_hashes(ids),
        }  # fmt: skip
        about |= {"context_tokens": depth} if depth else {}
        about |= {"vocabulary": len(vocabulary)} if vocabulary else {}
        about |= {"sized_prompt_tokens": len(ids) + front} if sized == "inexact" else {}
        about |= {"images": images, "image_pixels": image_size[0] * image_size[1]} if images else {}
        pictures = tuple(make_png(*image_size, seed=f"{seed} {number} {each}") for each in range(images))
        found.append(Ask(given, tokens, fixed, chat, temperature, images=pictures, about=about))
        progress(number + 1, count)
    return found


def check_sizes(count: int, prompt: int, depth: int, front: int, form: str, coder: Coder) -> None:
    """ParameterError for the first that is out of range."""
    if count < 1:
        raise ParameterError(f"count: {count} requests; give at least 1")
    if not 1 <= prompt <= MOST_PROMPT:
        raise ParameterError(f"prompt: {prompt} tokens; give 1 to {MOST_PROMPT:,}")
    if not 0 <= depth < prompt:
        raise ParameterError(
            f"depth: {depth} of {prompt} tokens; the context is a part of the prompt, from 0 to {prompt - 1}"
        )
    if not 0 <= front < prompt - depth:
        raise ParameterError(f"in_front: {front} tokens leave none of the {prompt - depth} behind the context")
    if form not in ("auto", "text", "ids"):
        raise ParameterError(f"form: {form!r}; use auto, text or ids")
    if form == "ids" and not coder.takes_ids:
        raise ParameterError("this runtime takes no token ids as a prompt; leave form at auto")


def draw(
    kind: Content, coder: Coder, chance: random.Random, vocabulary: Sequence[int], size: int, depth: int, as_ids: bool
) -> tuple[str | None, list[int]]:
    """One prompt: (text or None, its ids), of `size` tokens; a text of another length where none was found."""
    draft = kind.make(chance)
    if draft.pieces is None:
        drawn = chance.choices(vocabulary, k=size)
        if as_ids:
            return None, drawn
        draft = Draft("", iter(lambda: coder.decode(chance.choices(vocabulary, k=64)), None))
    assert draft.pieces is not None
    ids = long_enough(coder.encode, draft.opening, draft.pieces, size + 8)
    question = draft.question
    if question and len(coder.encode(question)) * QUESTION_SHARE > size - depth:
        question = ""
    if as_ids:
        tail = coder.encode(question) if question else []
        return None, [*ids[: size - len(tail)], *tail]
    context, rest = "", ids
    if depth:
        context = fit(coder, "", ids, "", depth) or ""
        rest = ids[depth:] if context else ids
    text = fit(coder, context, rest, question, size) or fit(coder, "", ids, question, size) or coder.decode(ids[:size])
    return text, coder.encode(text)


def drawn_vocabulary(coder: Coder) -> tuple[int, ...]:
    """Ids to draw from where a tokenizer does not tell its vocabulary: those of a stretch of every content type."""
    chance = random.Random("vocabulary")
    found: set[int] = set()
    for kind in content_types().values():
        draft = kind.make(chance)
        if draft.pieces is not None:
            found |= set(coder.encode("".join(next(draft.pieces) for _ in range(200))))
    return tuple(sorted(found))
