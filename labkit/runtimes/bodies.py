"""What is sent for a request: the JSON of OpenAI's two endpoints and of llama-server's own, and room for its answer."""

import base64
from collections.abc import Mapping
from typing import Any

from labkit.errors import ParameterError
from labkit.runtimes.address import Address
from labkit.runtimes.client import Post
from labkit.runtimes.runtime import Ask

MOST_BYTES = 1 << 30  # of an answer, whatever was asked for
_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


def post(address: Address, path: str, body: Mapping[str, Any], tokens: int) -> Post:
    """The request as bytes. Its answer may have some kilobytes a token, and the prompt several times over."""
    data = address.post(path, body)
    return Post(data, min(MOST_BYTES, (4 << 20) + 16 * len(data) + 8192 * tokens))


def completion(ask: Ask, model: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """POST /v1/completions. `more`: what this server takes beside OpenAI's own fields."""
    prompt = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
    return {"model": model, "prompt": prompt, **_common(ask), **more}


def chat(ask: Ask, model: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """POST /v1/chat/completions, one message of a user."""
    content: Any = ask.prompt
    if ask.images:
        content = [{"type": "text", "text": ask.prompt}]
        content += [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in ask.images]
    return {"model": model, "messages": [{"role": "user", "content": content}], **_common(ask), **more}


def _common(ask: Ask) -> dict[str, Any]:
    seed = {} if ask.seed is None else {"seed": ask.seed}
    return {"max_tokens": ask.tokens, "temperature": ask.temperature, "stream": True, **seed}


def data_url(image: bytes) -> str:
    """A PNG or JPEG as a URL that holds it."""
    kind = next((kind for start, kind in _KINDS.items() if image.startswith(start)), None)
    if kind is None:
        raise ParameterError("an image is neither PNG nor JPEG")
    return f"data:{kind};base64,{base64.b64encode(image).decode()}"


def sampling(ask: Ask) -> dict[str, Any]:
    """llama.cpp's samplers for plain greedy decoding, or for plain sampling at a temperature; its defaults are others."""
    if ask.temperature == 0:
        chosen: dict[str, Any] = {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"]}
    else:
        chosen = {"temperature": ask.temperature, "samplers": ["temperature"]}
    return chosen if ask.seed is None else {**chosen, "seed": ask.seed}
