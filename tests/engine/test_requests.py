"""What a caller can ask of an engine: streams, stops, ends, limits, settings, and every wrong request in one line."""

import math
import threading
import time

import numpy as np
import pytest
from tiny_models import words

from labkit.engine.engine import Engine
from labkit.engine.request import Stream
from labkit.engine.sampling import Sampling
from labkit.errors import EngineError, ParameterError

pytestmark = pytest.mark.quick
OPTIONS = {"slots": 4, "context": 128, "arithmetic": "exact"}  # ids are compared across widths


@pytest.fixture
def engine(engines):
    return engines("llama-q4_1", **OPTIONS)


@pytest.fixture
def prompt(tiny):
    return tiny("llama-q4_1").prompt


def idle(engine, seconds: float = 10.0) -> bool:
    """Whether all slots become free within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not engine.scheduler.busy and not engine.scheduler.waiting:
            return True
        time.sleep(0.01)
    return False


# streams


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 5}])
def test_a_stream_gives_what_generate_gives(engine, prompt, settings):
    [whole] = engine.generate([prompt], max_tokens=30, ignore_eos=True, logprobs=3, **settings)
    stream = engine.stream(prompt, max_tokens=30, ignore_eos=True, logprobs=3, **settings)
    tokens = list(stream)
    made = [token for token in tokens if token.id >= 0]
    assert tuple(token.id for token in made) == whole.token_ids
    assert "".join(token.text for token in tokens) == whole.text == engine.tokenizer.decode(whole.token_ids)
    assert tuple(token.logprob for token in made) == whole.logprobs
    assert tuple(token.top for token in made) == whole.top_logprobs
    assert stream.completion.finish == whole.finish == "length"
    times = [token.time_s for token in made]
    assert times == sorted(times)
    assert stream.completion.submit_s <= stream.completion.start_s <= times[0]


def test_tokens_arrive_while_later_ones_are_made(engine, prompt):
    stream = engine.stream(prompt, max_tokens=60, ignore_eos=True)
    assert isinstance(stream, Stream)
    next(stream)
    assert stream.completion is None, "the first token came before the last was made"
    rest = list(stream)
    assert len([token for token in rest if token.id >= 0]) == 59


@pytest.mark.parametrize("leave", ["break", "close", "drop", "raise"])
def test_leaving_a_stream_early_frees_its_slot_and_the_engine_goes_on(engine, prompt, leave):
    want = engine.generate([prompt], max_tokens=5, ignore_eos=True)[0].token_ids
    stream = engine.stream(prompt, max_tokens=79, ignore_eos=True)
    if leave == "break":
        for _ in stream:
            break
        del stream
    elif leave == "close":
        next(stream)
        stream.close()
    elif leave == "drop":
        del stream  # never started
    else:

        def fail() -> None:
            with stream:
                for token in stream:
                    raise ZeroDivisionError(token.text)

        with pytest.raises(ZeroDivisionError):
            fail()
    assert idle(engine)
    last = engine.generate([prompt], max_tokens=5, ignore_eos=True)[0]
    assert last.token_ids == want


def test_a_cancelled_stream_says_so(engine, prompt):
    stream = engine.stream(prompt, max_tokens=79, ignore_eos=True)
    next(stream)
    stream.close()
    rest = list(stream)
    assert stream.completion.finish == "cancelled"
    assert 1 + len([t for t in rest if t.id >= 0]) == len(stream.completion.token_ids) < 79


# where a completion ends


def chosen(engine, prompt, count=12):
    """A greedy continuation: ids and the text of each."""
    ids = engine.generate([prompt], max_tokens=count, ignore_eos=True)[0].token_ids
    return ids, [engine.tokenizer.decode([i]) for i in ids]


def test_a_stop_string_ends_the_text_before_it(engine, prompt):
    ids, texts = chosen(engine, prompt)
    text = engine.tokenizer.decode(ids)
    stop = next(piece for piece in texts[3:] if piece.strip())
    at = text.index(stop)
    [done] = engine.generate([prompt], max_tokens=12, ignore_eos=True, stop=[stop])
    assert (done.text, done.finish) == (text[:at], "stop")
    assert engine.tokenizer.decode(done.token_ids).endswith(stop)
    streamed = list(engine.stream(prompt, max_tokens=12, ignore_eos=True, stop=stop))
    assert "".join(token.text for token in streamed) == text[:at]


def test_a_stop_string_split_across_tokens_is_held_back_and_cut(engine, prompt):
    ids, texts = chosen(engine, prompt)
    text = engine.tokenizer.decode(ids)
    stop = texts[4][-1:] + texts[5][:1]  # the end of one token and the start of the next
    assert len(stop) == 2
    at = text.index(stop)
    seen = ""
    for token in engine.stream(prompt, max_tokens=12, ignore_eos=True, stop=[stop, "never said"]):
        seen += token.text
        assert text.startswith(seen)
        assert len(seen) <= at, "a character of the stop string was shown"
    assert seen == text[:at]


def test_text_held_back_for_a_stop_that_did_not_come_is_given_at_the_end(engine, prompt):
    ids, _ = chosen(engine, prompt)
    text = engine.tokenizer.decode(ids)
    almost = text[-3:] + "\0 never"  # the last three characters could begin it
    tokens = list(engine.stream(prompt, max_tokens=12, ignore_eos=True, stop=almost))
    assert "".join(token.text for token in tokens) == text
    assert tokens[-1].id == -1
    assert tokens[-1].text == text[-3:]
    assert engine.generate([prompt], max_tokens=12, ignore_eos=True, stop=almost)[0].text == text


def test_the_earliest_of_several_stop_strings_counts(engine, prompt):
    ids, _ = chosen(engine, prompt)
    text = engine.tokenizer.decode(ids)
    [done] = engine.generate([prompt], max_tokens=12, ignore_eos=True, stop=[text[9:11], text[4:6], text[15:17]])
    assert done.text == text[: min(text.index(text[9:11]), text.index(text[4:6]), text.index(text[15:17]))]


def eos_bias(engine):
    return {min(engine.tokenizer.eos_ids): 100.0}


@pytest.mark.parametrize("streaming", [True, False])
def test_a_stop_id_ends_the_completion_with_its_own_text(engine, prompt, streaming):
    ids, _ = chosen(engine, prompt)
    at = 4 + next(i for i, token in enumerate(ids[4:]) if token not in ids[:4])
    options = {"max_tokens": 12, "ignore_eos": True, "stop_ids": [ids[at]]}
    if streaming:
        stream = engine.stream(prompt, **options)
        text, done = "".join(token.text for token in stream), stream.completion
        assert text == done.text
    else:
        done = engine.generate([prompt], **options)[0]
    assert (done.finish, done.token_ids) == ("stop", ids[: at + 1])
    with pytest.raises(ParameterError, match=r"a stop id=-1 is not a whole number from 0"):
        engine.stream(prompt, stop_ids=[-1])


@pytest.mark.parametrize("streaming", [True, False])
def test_a_submitted_request_delivers_its_tokens_and_its_end_without_anyone_waiting(engine, prompt, streaming):
    want = engine.generate([prompt], max_tokens=9, ignore_eos=True)[0]
    got, ended = [], threading.Event()

    def deliver(token):
        got.append(token)
        if token is None:
            ended.set()

    request = engine.submit(prompt, deliver, streaming=streaming, max_tokens=9, ignore_eos=True)
    assert ended.wait(20)
    assert request.completion.token_ids == want.token_ids
    assert [token.id for token in got[:-1]] == (list(want.token_ids) if streaming else [])


def test_the_end_token_ends_a_completion_unless_it_is_ignored(engine, prompt):
    end = min(engine.tokenizer.eos_ids)
    [done] = engine.generate([prompt], max_tokens=6, logit_bias=eos_bias(engine))
    assert (done.finish, done.token_ids) == ("stop", (end,))
    [going] = engine.generate([prompt], max_tokens=6, ignore_eos=True, logit_bias=eos_bias(engine))
    assert (going.finish, going.token_ids) == ("length", (end,) * 6)
    [after] = engine.generate([prompt], max_tokens=6, ignore_eos=True)
    assert end not in after.token_ids, "the bias went with its request"


def test_ends_of_single_streams_do_not_move_the_others(engine, prompt):
    """Slots that end at different times in one submit: each gets exactly what it gets alone."""
    lengths = [1, 2, 17, 40]
    alone = [engine.generate([prompt], max_tokens=n, ignore_eos=True)[0].token_ids for n in lengths]
    streams = [engine.stream(prompt, max_tokens=n, ignore_eos=True) for n in lengths]
    assert [tuple(t.id for t in stream if t.id >= 0) for stream in streams] == alone
    assert [len(ids) for ids in alone] == lengths


@pytest.mark.parametrize("length", [1, 100, 126, 127])
def test_a_full_context_ends_the_completion(engine, length):
    [done] = engine.generate([words(1, length)], max_tokens=1000, ignore_eos=True)
    assert done.finish == "context"
    # every position holds a token, and the last one still gives a successor
    assert length + len(done.token_ids) == 128 + 1


def test_one_token_is_enough_for_a_prompt_and_for_an_answer(engine):
    [done] = engine.generate([[7]], max_tokens=1)
    assert len(done.token_ids) == 1
    assert done.tpot_s is None
    assert done.ttft_s > 0


# wrong requests


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([5, 768], "token id 768 is outside the vocabulary of 768"),
        ([-1], "token id -1 is outside"),
        ([1 << 40], "token id 1099511627776 is outside"),
        ([1.5], "a prompt is text or a list of token ids"),
        (["a"], "a prompt is text or a list of token ids"),
        (5, "a prompt is text or a list of token ids, not int"),
        (None, "a prompt is text or a list of token ids, not NoneType"),
        (
            [6] * 128,
            "the prompt has 128 tokens; a context of 128 takes at most 127: shorten it or open the engine with",
        ),
        ("\ud800", "text"),
    ],
)
def test_a_wrong_prompt_is_refused_in_one_line(engine, prompt, said):
    for ask in (lambda: engine.generate([prompt]), lambda: engine.stream(prompt)):
        with pytest.raises(ParameterError) as caught:
            ask()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_tokens": 0}, "max_tokens=0 is not a whole number from 1"),
        ({"max_tokens": -3}, "max_tokens=-3"),
        ({"max_tokens": 2.5}, "max_tokens=2.5"),
        ({"max_tokens": math.nan}, "max_tokens=nan"),
        ({"max_tokens": True}, "max_tokens=True"),
        ({"logprobs": 65}, "logprobs=65 is not a whole number from 0 to 64"),
        ({"logprobs": -1}, "logprobs=-1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": -1}, "temperature=-1"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_p": math.nan}, "top_p=nan"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"presence_penalty": math.nan}, "presence_penalty=nan"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"seed": -1}, "seed=-1"),
        ({"logit_bias": {768: 1.0}}, "logit_bias names token 768, which is outside the vocabulary of 768"),
        ({"logit_bias": {1: math.nan}}, "logit_bias[1]=nan"),
        ({"temprature": 1}, "'temprature' is not a setting; there are temperature, top_k"),
        ({"stop": [""]}, "stop strings are non-empty texts"),
        ({"stop": [3]}, "stop strings are non-empty texts"),
        ({"sampling": Sampling(), "top_k": 3}, "give sampling=... or top_k, not both"),
        ({"sampling": 0.5}, "sampling=0.5 is not a Sampling"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name_before_anything_runs(engine, prompt, options, said):
    before = len(engine.steps)
    for ask in (lambda: engine.generate([prompt], **options), lambda: engine.stream(prompt, **options)):
        with pytest.raises(ParameterError) as caught:
            ask()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
    assert idle(engine)
    assert len(engine.steps) == before


def test_wrong_lists_of_prompts_and_samplings_are_refused(engine, prompt):
    for prompts in ([], ()):
        with pytest.raises(ParameterError, match=r"no prompts were given"):
            engine.generate(prompts)
    with pytest.raises(ParameterError, match=r"prompts are a list"):
        engine.generate(5)
    with pytest.raises(ParameterError, match=r"2 samplings for 1 prompts"):
        engine.generate([prompt], sampling=[Sampling(), Sampling()])
    with pytest.raises(ParameterError, match=r"token id 900"):
        engine.generate([prompt, [900]])  # one wrong prompt and none runs
    assert idle(engine)


def test_prompts_may_be_arrays(engine, prompt):
    want = engine.generate([prompt], max_tokens=3)[0].token_ids
    assert engine.generate(np.array([prompt]), max_tokens=3)[0].token_ids == want
    assert engine.generate([np.array(prompt, np.uint16)], max_tokens=3, stop=None)[0].token_ids == want


# sampling


def test_the_same_seed_gives_the_same_ids_in_any_slot_and_at_any_width(engine, prompt):
    settings = {"max_tokens": 16, "ignore_eos": True, "temperature": 0.9, "top_p": 0.95}
    want = engine.generate([prompt], seed=11, **settings)[0].token_ids
    assert engine.generate([prompt], seed=12, **settings)[0].token_ids != want
    mine = Sampling(temperature=0.9, top_p=0.95, seed=11)
    for place in range(4):
        samplings = [Sampling(temperature=1.3, seed=90 + i) for i in range(4)]
        samplings[place] = mine
        prompts = [words(i, 30) for i in range(4)]
        prompts[place] = prompt
        done = engine.generate(prompts, sampling=samplings, max_tokens=16, ignore_eos=True)[place]
        assert done.token_ids == want
        assert done.slot == place


def test_without_a_seed_every_request_draws_anew(engine, prompt):
    done = engine.generate([prompt] * 4, max_tokens=16, ignore_eos=True, temperature=1.5)
    assert len({c.token_ids for c in done}) == 4


def test_penalties_change_what_is_said_and_greedy_beside_them_stays(engine, prompt):
    plain = engine.generate([prompt], max_tokens=40, ignore_eos=True)[0].token_ids
    for penalty in ({"repetition_penalty": 1.5}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        both = engine.generate(
            [prompt, prompt], sampling=[Sampling(), Sampling(**penalty)], max_tokens=40, ignore_eos=True
        )
        assert both[0].token_ids == plain
        assert both[1].token_ids != plain
        assert len(set(both[1].token_ids)) >= len(set(plain)), "penalties do not make it repeat itself more"


def test_a_repetition_penalty_sees_the_prompt_and_only_its_own(engine, tiny):
    """The first token: logits of the reference, divided or multiplied where the prompt holds the id (HF's formula)."""
    truth = tiny("llama-q4_1")
    for penalty in (1.3, 3.0, 50.0):
        logits = truth.logits[0].astype(np.float64)
        seen = sorted(set(truth.prompt))
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        settings = [Sampling(), Sampling(repetition_penalty=penalty), Sampling(repetition_penalty=penalty)]
        done = engine.generate([words(9, 20), truth.prompt, words(8, 20)], sampling=settings, max_tokens=1)
        assert done[1].token_ids[0] == logits.argmax()


def test_a_bias_of_100_and_of_minus_100_forces_and_forbids(engine, prompt):
    first = engine.generate([prompt], max_tokens=1)[0].token_ids[0]
    assert engine.generate([prompt], max_tokens=1, logit_bias={first: -100})[0].token_ids[0] != first
    assert engine.generate([prompt], max_tokens=3, ignore_eos=True, logit_bias={300: 100})[0].token_ids == (300,) * 3


@pytest.mark.parametrize("count", [1, 5, 8, 9, 64])
def test_log_probabilities_are_the_models_own_and_match_the_top_entries(engine, prompt, count):
    [done] = engine.generate([prompt], max_tokens=8, ignore_eos=True, logprobs=count, temperature=1.2, top_k=20, seed=3)
    assert [len(step) for step in done.top_logprobs] == [count] * 8
    for token, logprob, top in zip(done.token_ids, done.logprobs, done.top_logprobs, strict=True):
        values = [v for _, v in top]
        assert values == sorted(values, reverse=True)
        assert math.fsum(math.exp(v) for v in values) <= 1 + 1e-5
        if token in dict(top):
            assert dict(top)[token] == pytest.approx(logprob, abs=1e-5)
        else:
            assert logprob <= values[-1] + 1e-5
    greedy = engine.generate([prompt], max_tokens=1, logprobs=count)[0]
    assert greedy.top_logprobs[0][0][0] == greedy.token_ids[0]
    assert done.top_logprobs[0] == greedy.top_logprobs[0], "temperature does not change what is reported"


def test_requests_with_and_without_log_probabilities_share_a_batch(engine, prompt):
    streams = [engine.stream(prompt, max_tokens=6, ignore_eos=True, logprobs=n) for n in (0, 2, 40)]
    got = [[t for t in stream if t.id >= 0] for stream in streams]
    assert [len(t.top) for t in got[0]] == [0] * 6
    assert [len(t.top) for t in got[1]] == [2] * 6
    assert [len(t.top) for t in got[2]] == [40] * 6
    assert len({tuple(t.id for t in tokens) for tokens in got}) == 1


# coming and going


def test_requests_join_and_leave_while_others_decode(engine, prompts):
    settings = {"ignore_eos": True}
    lengths = [3 + (7 * i) % 23 for i in range(24)]
    mine = prompts[:24]
    want = [engine.generate([p], max_tokens=n, **settings)[0] for p, n in zip(mine, lengths, strict=True)]
    wrong: list[str] = []

    def caller(number: int) -> None:
        rng = np.random.default_rng(number)
        for i in rng.permutation(24)[:6].tolist():
            time.sleep(float(rng.random()) * 0.01)
            try:
                if rng.random() < 0.3:  # some leave early
                    for _, token in zip(range(2), engine.stream(mine[i], max_tokens=60, **settings), strict=False):
                        assert token.id >= 0
                got = engine.generate([mine[i]], max_tokens=lengths[i], **settings)[0]
                if got.text != want[i].text or got.finish != "length":
                    wrong.append(f"prompt {i}: {got.text!r} instead of {want[i].text!r}")
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert idle(engine)
    assert max(step.decoding for step in engine.steps) > 1, "callers shared steps"


def test_more_requests_than_slots_are_served_first_come_first(engine, prompts):
    done = engine.generate(prompts[:11], max_tokens=5, ignore_eos=True)
    starts = [c.start_s for c in done]
    assert starts == sorted(starts)
    assert all(c.submit_s <= c.start_s <= c.first_token_s <= c.last_token_s for c in done)


def test_chat_goes_through_the_template_of_the_file(engine):
    said = engine.chat("hi", max_tokens=2, ignore_eos=True)
    text = engine.model.chat([{"role": "user", "content": "hi"}])
    assert list(said.prompt_ids) == engine.tokenizer.encode(text, special=True)
    assert said.prompt_ids[0] == engine.tokenizer.encode("<|im_start|>", special=True)[0]


def test_a_generation_shows_itself_in_a_notebook(engine, prompt):
    done = engine.generate([prompt], max_tokens=3, ignore_eos=True, logit_bias={engine.encode("<")[0]: 100.0})
    assert "&lt;&lt;&lt;" in done._repr_html_()
    assert repr(done) == "<Generation of 1 completions, 3 tokens>"


def test_logits_that_are_not_numbers_end_the_request_in_one_line(tiny, device, tmp_path):
    from labkit.engine.engine import Engine
    from labkit.models.model import Model

    truth = tiny("llama-f32")
    broken = bytearray(truth.path.read_bytes())
    norm = truth.model.tensors["output_norm.weight"]
    broken[norm.offset + 8 : norm.offset + 12] = np.float32(np.nan).tobytes()
    (tmp_path / "nan.gguf").write_bytes(broken)
    with Model(tmp_path / "nan.gguf") as model:
        assert np.isnan(model.array("output_norm.weight")).sum() == 1
        with Engine(model, device, **OPTIONS) as engine:
            for settings in ({}, {"temperature": 1.0}, {"logprobs": 5}):
                with pytest.raises(EngineError, match=r"^the model's logits are not numbers at position 47$") as caught:
                    engine.generate([truth.prompt], max_tokens=5, **settings)
                assert "\n" not in str(caught.value)
            with pytest.raises(EngineError, match=r"not numbers"):
                list(engine.stream(truth.prompt, max_tokens=5))
            assert idle(engine)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda e: e.generate([b"abc"]), "a prompt is"),
        (lambda e: e.generate([[True, 3]]), "a prompt is"),
        (lambda e: e.generate(["x"], stop=3), "stop=3"),
        (lambda e: Engine(3, e.device), "model=3"),
        (lambda e: Engine(e.model, object()), "device=<object"),
        (lambda e: Engine(e.model, e.device, slots="x"), "slots='x'"),
    ],
)
def test_things_of_the_wrong_kind_are_refused_in_one_line(engine, call, told):
    with pytest.raises(ParameterError) as caught:
        call(engine)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
