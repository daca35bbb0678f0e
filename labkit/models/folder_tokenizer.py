"""The tokenizer of a hub folder as a GGUF file's metadata: tokens, their types, merges, special ids, chat template."""

from pathlib import Path
from typing import Any

import numpy as np

from labkit.errors import ModelError
from labkit.models.safetensors import read_json
from labkit.models.tokenizer import CONTROL, NORMAL, PRE_TOKENIZERS, UNUSED, USER_DEFINED, pre_tokenizer_named

_MOST_TOKENIZER, _MOST_SETTINGS = 1 << 26, 1 << 22
_MOST_TOKENS = 1 << 21


def tokenizer_metadata(folder: Path, config: dict[str, Any], rows: int) -> dict[str, Any]:
    """The `tokenizer.*` keys for a model of `rows` embedding rows; none where the folder has no tokenizer.json.

    Raises ModelError for files that are damaged. A kind of tokenizer that labkit does not rebuild is named as such, and
    refused where text is first met.
    """
    state = read_json(folder / "tokenizer.json", _MOST_TOKENIZER)
    settings = read_json(folder / "tokenizer_config.json", _MOST_SETTINGS)
    made: dict[str, Any] = _template(folder, settings)
    if not state:
        return made
    where = str(folder / "tokenizer.json")
    model = state.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        kind = model.get("type", "unnamed") if isinstance(model, dict) else "unnamed"
        return made | {"tokenizer.ggml.model": str(kind)[:40]}
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        return made | {"tokenizer.ggml.model": "llama" if model.get("type") == "BPE" else str(model.get("type"))[:40]}
    tokens, types = _tokens(model["vocab"], state.get("added_tokens") or [], rows, where)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    made |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre_tokenizer(state, model),
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": _merges(model.get("merges"), where),
        "tokenizer.ggml.add_bos_token": _adds_bos(state, settings),
    }
    token_id: int | None
    for name, key in (("bos_token", "bos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        if (token_id := ids.get(_text(settings.get(name)))) is not None:
            made[f"tokenizer.ggml.{key}_token_id"] = token_id
    ends = [ids.get(_text(settings.get("eos_token")))]
    for source in (read_json(folder / "generation_config.json", _MOST_SETTINGS), config):
        named = source.get("eos_token_id")
        ends += [each for each in (named if isinstance(named, list) else [named]) if type(each) is int]
    known = [each for each in dict.fromkeys(ends) if each is not None and 0 <= each < len(tokens)]
    for key, token_id in zip(("eos", "eot", "eom"), known, strict=False):
        made[f"tokenizer.ggml.{key}_token_id"] = token_id
    return made


def _tokens(vocabulary: dict[str, Any], added: Any, rows: int, where: str) -> tuple[list[str], list[int]]:
    """Texts and types by id, up to the last of the model's rows: ids no text has are unused."""
    given: dict[int, tuple[str, int]] = {}
    for text, token_id in vocabulary.items():
        if type(token_id) is not int or not 0 <= token_id < _MOST_TOKENS:
            raise ModelError(f"{where}: token {text[:40]!r} has id {str(token_id)[:20]}, not from 0 to {_MOST_TOKENS}")
        if token_id in given:
            raise ModelError(f"{where}: tokens {given[token_id][0][:40]!r} and {text[:40]!r} share id {token_id}")
        given[token_id] = (text, NORMAL)
    if not isinstance(added, list):
        raise ModelError(f"{where}: its added_tokens are not a list; it is damaged")
    for each in added:
        own, content = (each.get("id"), each.get("content")) if isinstance(each, dict) else (None, None)
        if type(own) is not int or not 0 <= own < _MOST_TOKENS or not isinstance(content, str):
            raise ModelError(f"{where}: an added token is {str(each)[:60]}, without an id and a text")
        given[own] = (content, CONTROL if each.get("special") is True else USER_DEFINED)
    count = max(max(given, default=-1) + 1, rows)
    tokens, types = (
        zip(*(given.get(i, (f"[PAD{i}]", UNUSED)) for i in range(count)), strict=True) if count else ((), ())
    )
    return list(tokens), list(types)


def _merges(merges: Any, where: str) -> tuple[str, ...]:
    """Merges as texts "left right"; newer files have pairs."""
    made = []
    for each in merges if isinstance(merges, list) else [None]:
        pair = each.split(" ") if isinstance(each, str) else each
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(half, str) for half in pair):
            raise ModelError(f"{where}: a merge is {str(each)[:60]!r}, not two texts; it is damaged")
        made.append(" ".join(pair))
    return tuple(made)


def _pre_tokenizer(state: dict[str, Any], model: dict[str, Any]) -> str:
    """The name of the way to cut text that tokenizer.json describes, or "unlisted"."""
    described = state.get("pre_tokenizer")
    normalizer = state.get("normalizer")
    if normalizer is not None and not (isinstance(normalizer, dict) and normalizer.get("type") == "NFC"):
        return "unlisted"
    steps = (
        described.get("pretokenizers") if isinstance(described, dict) and "pretokenizers" in described else [described]
    )
    expression, digits = None, False
    for step in steps if isinstance(steps, list) else []:
        kind = step.get("type") if isinstance(step, dict) else None
        if kind == "Digits" and step.get("individual_digits") is True:
            digits = True
        elif kind == "Split" and expression is None and step.get("invert") is not True:
            pattern = step.get("pattern")
            expression = pattern.get("Regex") if isinstance(pattern, dict) else None
        elif kind == "ByteLevel" and step.get("add_prefix_space") is not True:
            if step.get("use_regex", True) is True:
                expression = PRE_TOKENIZERS["gpt-2"].expression if expression is None else "both"
        else:
            return "unlisted"
    name = pre_tokenizer_named(expression, digits, model.get("ignore_merges") is True)
    return "unlisted" if name is None else name


def _adds_bos(state: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether prompts begin with the token of beginnings: what the settings say, or what the post-processor puts there."""
    if isinstance(settings.get("add_bos_token"), bool):
        return bool(settings["add_bos_token"])
    processor = state.get("post_processor")
    processors = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    for each in processors if isinstance(processors, list) else []:
        single = each.get("single") if isinstance(each, dict) else None
        first = single[0] if isinstance(single, list) and single and isinstance(single[0], dict) else {}
        special = first.get("SpecialToken")
        if isinstance(special, dict) and special.get("id") == _text(settings.get("bos_token")):
            return True
    return False


def _text(token: Any) -> str:
    """The text of a token as tokenizer_config.json gives it: itself, or the "content" of an object; "" for neither."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _template(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """The chat template: of its own file, else of tokenizer_config.json, where several are named the default one."""
    own = folder / "chat_template.jinja"
    try:
        if own.is_file() and own.stat().st_size <= _MOST_SETTINGS:
            return {"tokenizer.chat_template": own.read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:
        raise ModelError(f"{own} cannot be read: {error}") from None
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return {"tokenizer.chat_template": template} if isinstance(template, str) else {}
