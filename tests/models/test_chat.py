"""Chat templates: rendered as Hugging Face renders them, and held within limits."""

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from crafted_gguf import DATA, TINY

from labkit.errors import ModelError, ParameterError
from labkit.models.chat import ChatTemplate
from labkit.models.gguf import GgufFile
from labkit.models.model import Model

USER = [{"role": "user", "content": "Hi"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"tokenizer.chat_template": source}, "test.gguf")


def test_the_smollm2_template_gives_the_references_prompt(smollm2_vocabulary: Path) -> None:
    expected = json.loads((DATA / "smollm2_greedy.json").read_text())["prompts"]["chat"]["prompt"]
    chat = ChatTemplate(GgufFile(smollm2_vocabulary).metadata, "smollm2")
    assert chat.render([{"role": "user", "content": "List three uses of a hammer."}]) == expected


@pytest.mark.quick
def test_a_model_renders_its_own_template() -> None:
    with Model(TINY / "llama-q4_0.gguf") as model:
        assert model.chat(USER) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        assert model.chat(USER, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"
        two = [*USER, {"role": "assistant", "content": "naïve 🙂"}]
        assert model.chat(two).endswith("assistant\nnaïve 🙂<|im_end|>\n<|im_start|>assistant\n")
        ids = model.tokenizer.encode(model.chat(USER), special=True)
        assert (ids[0], ids.count(5)) == (4, 1)


def test_hugging_faces_additions_are_there() -> None:
    chat = template(
        "{%- for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{{ m | tojson }}{% generation %}{{ m.content }}{% endgeneration %}\n{%- endfor %}"
        "{{ strftime_now('%Y') | length }}{{ tools is none }}{{ bos_token is defined }}"
    )
    assert chat.render([{"role": "user", "content": "<é>"}, *USER]) == '{"role": "user", "content": "<é>"}<é>4TrueFalse'


def test_special_token_texts_reach_the_template() -> None:
    metadata = {
        **GgufFile(TINY / "llama-q4_0.gguf").metadata,
        "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}",
    }
    assert ChatTemplate(metadata, "test.gguf").render(USER) == "<s></s>"


def test_a_file_without_a_template_says_to_use_raw() -> None:
    with pytest.raises(ModelError, match=r"no chat template.*--raw"):
        ChatTemplate({}, "test.gguf")


def test_messages_the_template_refuses_are_a_matter_of_the_parameters() -> None:
    with pytest.raises(ParameterError, match="refuses these messages: roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(USER)


@pytest.mark.parametrize("messages", [[], "Hi", None, [{}], [{"role": "user"}], ["Hi"], [{"role": 1, "content": ""}]])
def test_malformed_messages_are_one_line(messages: Any) -> None:
    with pytest.raises(ParameterError, match="chat message") as caught:
        template("{{ messages }}").render(messages)
    assert "\n" not in str(caught.value)


def test_a_message_that_is_no_json_is_one_line() -> None:
    with pytest.raises(ParameterError, match="plain text and lists"):
        template("{{ messages }}").render([{"role": "user", "content": object()}])


@pytest.mark.parametrize(
    "source",
    [
        "{% for",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 1 / 0 }}",
        "{{ range(1000000) | list }}",
        "{{ 'x' * 10000000000 }}",
        "{{ '%5000000000d' % 1 }}",
        "{{ ('x' | center(5000000000)) | length }}",
        "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}",
        "{{ 'x' * 20000000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'secrets' %}",
    ],
)
def test_a_hostile_or_broken_template_fails_in_one_line(source: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ModelError, match=r"test\.gguf: its chat template .*--raw") as caught:
        template(source).render(USER)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 8


def test_an_endless_template_is_ended_and_the_next_rendering_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.models.chat.SECONDS", 1.0)
    chat = template(
        "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
        "{% endfor %}{% endif %}done"
    )
    assert chat.render(USER) == "done"
    start = time.perf_counter()
    with pytest.raises(ModelError, match="did not end in"):
        chat.render([{"role": "user", "content": "loop"}])
    assert time.perf_counter() - start < 60
    assert chat.render(USER) == "done"


def test_the_worker_ends_with_its_template() -> None:
    chat = template("done")
    chat.render(USER)
    assert chat._worker is not None
    first = chat._worker.pid
    chat.close()
    chat.render(USER)
    second = chat._worker.pid
    del chat
    gc.collect()
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_second_rendering_is_fast() -> None:
    chat = template("{{ messages[0].content }}")
    chat.render(USER)
    start = time.perf_counter()
    chat.render(USER)
    took = time.perf_counter() - start
    print(f"{took * 1000:.1f} ms")
    assert took < 0.5
