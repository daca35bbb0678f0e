"""What llama.cpp's server tells of its settings, in the forms in which it answers, and what is no answer."""

from typing import Any

import pytest

from labkit.runtimes.props import read_settings

PROPS = {
    "default_generation_settings": {"params": {"speculative.types": "none"}, "n_ctx": 512},
    "total_slots": 2, "model_alias": "a", "model_path": "/home/me/a.gguf", "model_ftype": "Q4_1", "build_info": "b1-7e4c0a9",
}  # fmt: skip


def slot(speculative: Any, **more: Any) -> dict[str, Any]:
    return {"id": 0, "n_ctx": 256, "speculative": speculative, "is_processing": False} | more


def test_slots_context_model_and_quant_are_those_of_the_process() -> None:
    told = {"slots": 2, "context": 256, "model": "a.gguf", "quant": "Q4_1", "draft": "none"}
    assert read_settings(PROPS, [slot(False), slot(False)]) == told
    assert read_settings(PROPS, None) == {"slots": 2, "context": 512, "model": "a.gguf", "quant": "Q4_1"}


@pytest.mark.parametrize(
    ("slots", "draft"),
    [
        ([slot(False)], "none"),
        ([slot(True), slot(True)], "on"),  # before the first request, whatever /props says
        ([slot(True), slot(True, params={"speculative.types": "none,ngram-simple"})], "ngram-simple"),
        ([slot("yes")], None),
        ([], None),
    ],
)
def test_whether_it_drafts_is_what_its_slots_say(slots: list[dict[str, Any]], draft: str | None) -> None:
    assert read_settings(PROPS, slots).get("draft") == draft


@pytest.mark.parametrize("odd", [None, 3, "x", [], {}, {"total_slots": -1, "model_path": 4}, [[1]], {"params": []}])
def test_what_is_no_answer_tells_nothing(odd: Any) -> None:
    assert read_settings(odd, odd) == {}
