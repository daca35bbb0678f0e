"""The playground without a browser: it writes what the engine writes, tells the alternatives, and stops."""

import math
import threading
from typing import Any

import pytest
from page_rules import Page

from labkit.engine.engine import Engine
from labkit.errors import EngineError, ParameterError
from labkit.lab.publish.sanitise import sanitise
from labkit.show.tokens import Shown, shown, tint_of, tokens_html, tokens_table
from labkit.widgets import playground

PROMPT = "def hello"


def test_it_streams_what_the_engine_generates_with_the_likeliest_tokens_of_each_place(engine: Engine) -> None:
    settings: dict[str, Any] = {"temperature": 0.9, "seed": 11}
    want = engine.generate(PROMPT, max_tokens=8, logprobs=5, **settings)[0]
    view = playground(engine, PROMPT, max_tokens=8, **settings)
    lengths: list[int] = []
    view.followers.append(lambda one: lengths.append(len(one.tokens)))
    assert view.run().wait(30)
    now = view.state()
    assert now["error"] == ""
    assert now["text"] == want.text
    assert [one["id"] for one in now["tokens"]] == list(want.token_ids)
    assert [one["p"] for one in now["tokens"]] == pytest.approx([math.exp(value) for value in want.logprobs])
    assert sorted(set(lengths)) == list(range(len(view.tokens) + 1))  # each token was told as it came
    for one, top in zip(now["tokens"], want.top_logprobs, strict=True):
        assert one["alternatives"] == tuple((engine.tokenizer.decode([i]), math.exp(value)) for i, value in top)
        assert sum(p for _, p in one["alternatives"]) <= 1 + 1e-6
    assert now["finish"] == want.finish
    assert now["seed"] == 11
    assert now["ttft_s"] > 0
    assert now["memory"]["held"] == sum(engine.memory.values())


def test_two_runs_reuse_the_view_and_settings_stay_until_they_are_changed(engine: Engine) -> None:
    view = playground(engine, PROMPT, max_tokens=4)
    view.run(temperature=0.8).wait(30)
    first = view.seed
    assert first is not None  # fresh, and told, so that it can be repeated
    text = view.text
    view.run(seed=first).wait(30)
    assert (view.text, view.settings["temperature"], view.runs) == (text, 0.8, 2)
    view.run("import", temperature=0.0).wait(30)
    assert view.prompt == "import"
    assert view.text == engine.generate("import", max_tokens=4).texts[0]


def test_stopped_it_says_so_and_the_engine_writes_on(engine: Engine) -> None:
    begun = threading.Event()
    view = playground(engine, PROMPT, max_tokens=80, temperature=1.0, seed=1)
    view.followers.append(lambda one: begun.set() if len(one.tokens) > 1 else None)
    view.run()
    assert begun.wait(30)
    with pytest.raises(ParameterError, match="at work already"):
        view.run()
    view.stop()
    assert view.wait(10)
    assert view.state()["finish"] in ("cancelled", "stop")  # a random model may have ended by itself before
    assert len(engine.generate(PROMPT, max_tokens=3, ignore_eos=True)[0].token_ids) == 3
    view.run(max_tokens=2).wait(30)
    assert view.state()["error"] == ""
    view.close()
    assert not engine.closed


def test_wrong_settings_are_one_line_and_nothing_changes(engine: Engine) -> None:
    view = playground(engine, PROMPT, max_tokens=3)
    with pytest.raises(ParameterError, match=r"temperature=-1 is out of range"):
        view.run(temperature=-1)
    with pytest.raises(ParameterError, match="'heat' is not a control of the playground; there are temperature"):
        view.run(heat=1)
    with pytest.raises(ParameterError, match="'heat' is not a control"):
        playground(engine, heat=1)
    assert view.settings == {}
    view.run("").wait(10)
    assert view.state()["error"] == "the prompt is empty: give at least one token of text"
    assert view.error in view.picture()
    view.run("x " * 500).wait(10)
    assert "a context of 96 takes at most 95" in view.error
    view.run(PROMPT).wait(30)
    assert view.error == ""


def test_of_a_closed_engine_there_is_no_playground(engine: Engine) -> None:
    with Engine(engine.model, engine.device, slots=1, context=32) as other:
        view = playground(other, PROMPT)
    with pytest.raises(EngineError, match="the engine is closed"):
        playground(other)
    view.run().wait(10)
    assert view.error == "the engine is closed; open a new one"


def test_its_picture_is_a_page_that_needs_nothing(engine: Engine) -> None:
    view = playground(engine, "<b>bold</b>", max_tokens=3, temperature=1.0, seed=3)
    assert "nothing was asked yet" in view.html()
    view.run().wait(30)
    page = view.page("Playground")
    whole, kept = Page(view.html()), Page(sanitise(view.html()))
    assert (kept.texts, len(kept.styles), "title" in kept.attributes) == (whole.texts, len(whole.styles), True)
    assert "http" not in page
    assert "&lt;b&gt;bold" in page
    assert "<b>bold" not in page
    assert "every token" in page


def test_the_pointer_finds_the_alternatives_and_what_was_chosen_is_marked() -> None:
    words = {1: " the", 2: "<i>", 3: "\n"}
    top = ((1, math.log(0.5)), (2, math.log(0.25)), (3, math.log(0.12)))
    likeliest, second, rare = (shown(i, words.get(i, "zz"), math.log(p), top, words) for i, p in
                               ((1, 0.5), (2, 0.25), (9, 0.01)))  # fmt: skip
    assert likeliest.words.splitlines() == ["▸ ' the'  50 %", "  '<i>'  25 %", "  '\\n'  12 %"]
    assert second.words.splitlines()[1] == "▸ '<i>'  25 %"
    assert rare.words.splitlines()[3] == "▸ 'zz'  1.0 %"
    drawn = tokens_html([likeliest, second, rare])
    assert drawn.count("underline") == 2  # those that were not the likeliest
    assert "&lt;i&gt;</span>" in drawn
    assert "<i>" not in drawn
    assert "'&lt;i&gt;'" in tokens_table([second]) or "&#x27;&lt;i&gt;&#x27;" in tokens_table([second])


def test_tints_deepen_as_tokens_are_less_likely_and_text_that_was_held_back_has_none() -> None:
    depths = [float(tint_of(p).rpartition(",")[2].rstrip(")")) if tint_of(p) else 0.0 for p in (1.0, 0.7, 0.3, 0.0)]
    assert depths == sorted(depths)
    assert depths[0] == 0.0
    assert tokens_html([Shown(-1, "rest", None)]).count("<span") == 0
    many = tokens_html([Shown(1, "a", 0.5)] * 2500)
    assert many.count("<span") == 2000
    assert many.count("a") >= 2500
