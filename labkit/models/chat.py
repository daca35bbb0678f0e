"""The chat template of a model file, rendered in a process of its own, which no template can outlive or outgrow."""

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.errors import ModelError, ParameterError
from labkit.models.gguf import StringArray

SECONDS = 3.0  # of the processor for one rendering; an honest one takes milliseconds
_WORKER = Path(__file__).with_name("chat_worker.py")


class ChatTemplate:
    """Renders messages into a prompt by `tokenizer.chat_template`, a Jinja program that came with the file.

    The worker starts with the first rendering (about 0.1 s) and serves the following ones. Raises ModelError where the
    file has no template.
    """

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        template = metadata.get("tokenizer.chat_template")
        if not isinstance(template, str) or not template:
            raise ModelError(f"{where} has no chat template; give the prompt as plain text (`lab generate --raw`)")
        self._template, self._where = template, where
        self._special = _special_texts(metadata)
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        self._stop: weakref.finalize[..., Any] | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt text of `messages`, each with "role" and "content".

        Raises ParameterError for messages that are malformed or that the template refuses, ModelError for a template
        that is broken, does not end, or takes too much memory.
        """
        _check_messages(messages)
        values = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": None, **self._special}
        try:
            request = json.dumps({"template": self._template, "values": values}, default=dict)
        except (TypeError, ValueError) as error:
            raise ParameterError(f"chat messages must be plain text and lists: {error}") from None
        with self._lock:
            line = self._ask(request)
        if not line:
            raise ModelError(
                f"{self._where}: its chat template did not end in {SECONDS:g} s or took too much memory; use --raw"
            )
        reply = json.loads(line)
        if "refused" in reply:
            raise ParameterError(f"the model's chat template refuses these messages: {reply['refused']}")
        if "template" in reply:
            raise ModelError(f"{self._where}: its chat template fails ({reply['template']}); use --raw")
        text: str = reply["text"]
        return text

    def close(self) -> None:
        """End the worker; a later rendering starts a new one."""
        if self._stop is not None:
            self._stop()
        self._worker = self._stop = None

    def _ask(self, request: str) -> str:
        """One line to the worker, one line back; empty where it died over it, as it does when over its limits."""
        if self._worker is None or self._worker.poll() is not None:
            self.close()
            self._worker = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER), str(SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # an interrupt meant for a notebook's kernel must not reach it
            )
            self._stop = weakref.finalize(self, _end, self._worker)
        stdin, stdout = self._worker.stdin, self._worker.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(request + "\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = ""
        except BaseException:  # interrupted between question and answer: the next answer must not be this one's
            self.close()
            raise
        if not line:  # its pipe closes a moment before the process has ended
            self.close()
        return line


def _end(worker: "subprocess.Popen[str]") -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _special_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token`, … as templates know them; an absent one is left undefined."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, StringArray | tuple):
        return {}
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    texts = {}
    for key, name in names.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            texts[name] = tokens[token_id]
    return texts


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise ParameterError('chat messages are a list such as [{"role": "user", "content": "Hello"}]')
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ParameterError(f'chat message {place} lacks "role" or "content": {str(message)[:80]!r}')
