"""What the server answers: text equal to the engine's, the API's shapes, streamed and whole, and the errors of bodies."""

import json

import pytest
from running_server import NAME

PROMPT = "def main(argument"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Say something"}]


def joined(events):
    return "".join(choice["text"] for event in events for choice in event["choices"])


def said(events):
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "seed": 11, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    {"temperature": 1.3, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    {"temperature": 1.0, "seed": 3, "logit_bias": {"300": 5, "301": -100}},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s))
def test_text_is_the_engines_with_the_same_seed_whole_and_streamed(served, settings):
    given = settings | {"logit_bias": {int(k): v for k, v in settings.get("logit_bias", {}).items()}}
    want = served.engine.generate([PROMPT], max_tokens=40, **given)[0]
    status, whole, _ = served.post(prompt=PROMPT, max_tokens=40, **settings)
    assert (status, whole["choices"][0]["text"]) == (200, want.text)
    assert whole["usage"] == {
        "prompt_tokens": len(want.prompt_ids),
        "completion_tokens": len(want.token_ids),
        "total_tokens": len(want.prompt_ids) + len(want.token_ids),
    }
    assert joined(served.stream(prompt=PROMPT, max_tokens=40, **settings)) == want.text


def test_a_conversation_goes_through_the_models_template(served):
    want = served.engine.chat(MESSAGES, max_tokens=24, temperature=1.0, seed=9)
    options = {"messages": MESSAGES, "max_completion_tokens": 24, "seed": 9}
    _, whole, _ = served.post(CHAT, **options)
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": want.text, "refusal": None}
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "something"}]}]
    assert said(served.stream(CHAT, **options | {"messages": parts})) == want.text


def test_a_stream_begins_with_the_role_ends_with_the_reason_and_counts_where_asked(served):
    events = served.stream(CHAT, messages=MESSAGES, max_tokens=5, seed=1, ignore_eos=True)
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["length"]
    assert all("usage" not in event for event in events)
    events = served.stream(
        CHAT, messages=MESSAGES, max_tokens=5, seed=1, ignore_eos=True, stream_options={"include_usage": True}
    )
    assert all(event["usage"] is None for event in events[:-1])
    assert (events[-1]["choices"], events[-1]["usage"]["completion_tokens"]) == ([], 5)


def test_characters_split_over_tokens_are_streamed_whole(served):
    tokenizer = served.engine.tokenizer
    halves = [next(i for i in range(len(tokenizer)) if tokenizer.token_bytes(i) == each) for each in (b"\xc3", b"\xa9")]
    settings = {"temperature": 1.0, "seed": 2, "max_tokens": 60, "logit_bias": {str(i): 100 for i in halves}}
    given = settings | {"logit_bias": dict.fromkeys(halves, 100)}
    want = served.engine.generate([PROMPT], ignore_eos=True, **given)[0]
    assert set(want.token_ids) == set(halves)
    assert "é" in want.text, "halves that met"
    assert "\ufffd" in want.text, "halves that did not"
    events = served.stream(prompt=PROMPT, ignore_eos=True, **settings)
    assert joined(events) == want.text
    assert len(events) < 60, "a token that completes no character is not an event"
    _, whole, _ = served.post(prompt=PROMPT, ignore_eos=True, **settings)
    assert whole["choices"][0]["text"] == want.text


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_is_cut_off_and_a_stop_id_stays(served, streamed):
    free = served.engine.generate([PROMPT], max_tokens=30, temperature=0, ignore_eos=True)[0]
    stop = free.text[8:12]
    options = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "ignore_eos": True}

    def text(**more):
        if streamed:
            events = served.stream(**options, **more)
            return joined(events), events[-1]["choices"][0]["finish_reason"]
        choice = served.post(**options, **more)[1]["choices"][0]
        return choice["text"], choice["finish_reason"]

    assert text(stop=[stop, "never here"]) == (free.text[: free.text.find(stop)], "stop")
    at = 5 + next(i for i, token in enumerate(free.token_ids[5:]) if token not in free.token_ids[:5])
    want = served.engine.generate(
        [PROMPT], max_tokens=30, temperature=0, ignore_eos=True, stop_ids=[free.token_ids[at]]
    )[0]
    assert len(want.token_ids) == at + 1
    assert text(stop_token_ids=[free.token_ids[at]]) == (want.text, "stop")


def test_log_probabilities_in_both_shapes_are_the_engines(served):
    want = served.engine.generate([PROMPT], max_tokens=12, temperature=0, logprobs=3, ignore_eos=True)[0]
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    told = served.post(prompt=PROMPT, logprobs=3, **options)[1]["choices"][0]["logprobs"]
    assert told["token_logprobs"] == pytest.approx(want.logprobs, abs=2e-6)
    assert [max(top.values()) for top in told["top_logprobs"]] == pytest.approx(
        [top[0][1] for top in want.top_logprobs], abs=2e-6
    )
    assert all(len(top) in (3, 4) for top in told["top_logprobs"])
    assert told["text_offset"][0] == 0
    assert told["text_offset"] == sorted(told["text_offset"])
    streamed = served.stream(prompt=PROMPT, logprobs=3, **options)
    pieces = [event["choices"][0]["logprobs"] for event in streamed if event["choices"][0]["logprobs"]]
    for key in told:
        assert [value for piece in pieces for value in piece[key]] == told[key], key

    chat = served.engine.chat(MESSAGES, logprobs=2, **options)
    choice = served.post(CHAT, messages=MESSAGES, logprobs=True, top_logprobs=2, **options)[1]["choices"][0]
    content = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == pytest.approx(chat.logprobs, abs=2e-6)
    raw = b"".join(bytes(entry["bytes"]) for entry in content)
    assert raw.decode("utf-8", "replace") == chat.text == choice["message"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * 12


@pytest.mark.parametrize("streamed", [False, True])
def test_tokens_cut_off_by_a_stop_string_have_no_log_probability(served, streamed):
    free = served.engine.generate([PROMPT], max_tokens=30, temperature=0, ignore_eos=True)[0]
    stop = free.text[8:12]
    options = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "ignore_eos": True, "logprobs": 1, "stop": stop}
    if streamed:
        events = served.stream(**options)
        text = joined(events)
        offsets = [at for e in events if (told := e["choices"][0]["logprobs"]) for at in told["text_offset"]]
    else:
        choice = served.post(**options)[1]["choices"][0]
        text, offsets = choice["text"], choice["logprobs"]["text_offset"]
    assert text == free.text[: free.text.find(stop)]
    assert offsets
    assert max(offsets) < len(text)


def test_several_prompts_and_choices_come_in_order_each_with_its_seed(served):
    prompts = ["def main", "import os"]
    want = [
        served.engine.generate([prompt], max_tokens=10, temperature=1.0, seed=20 + i)[0].text
        for prompt in prompts
        for i in range(2)
    ]
    status, whole, _ = served.post(prompt=prompts, n=2, max_tokens=10, seed=20)
    assert status == 200
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in whole["choices"]] == want
    texts = ["", "", "", ""]
    for event in served.stream(prompt=prompts, n=2, max_tokens=10, seed=20):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == want
    ids = served.engine.encode("def main")
    assert served.post(prompt=ids, max_tokens=10, seed=20)[1]["choices"][0]["text"] == want[0]


def test_defaults_are_those_of_the_api(served):
    want = served.engine.generate([PROMPT], max_tokens=16, temperature=1.0, seed=4, ignore_eos=True)[0]
    assert served.post(prompt=PROMPT, seed=4, ignore_eos=True)[1]["choices"][0]["text"] == want.text
    usage = served.post(CHAT, messages=MESSAGES, seed=4, ignore_eos=True)[1]["usage"]
    assert usage["total_tokens"] == 256, "a conversation goes on to the end of the context"
    assert served.post(prompt=PROMPT, seed=-1, max_tokens=4)[0] == 200


def test_models_health_and_metrics(served):
    status, listing, _ = served.ask("GET", "/v1/models")
    assert (status, [model["id"] for model in listing["data"]]) == (200, [NAME])
    assert served.ask("GET", f"/v1/models/{NAME}")[1]["max_model_len"] == 256
    assert served.ask("GET", "/health")[:2] == (200, {"status": "ok"})
    before = served.ask("GET", "/metrics")[1]
    served.post(prompt=PROMPT, max_tokens=3, ignore_eos=True)
    after = served.ask("GET", "/metrics")[1]

    def number(text, name):
        return float(next(line for line in text.splitlines() if line.startswith(f"labkit_{name} ")).split()[1])

    assert number(after, "completion_tokens_total") - number(before, "completion_tokens_total") == 3
    assert number(after, "engine_steps_total") > number(before, "engine_steps_total")
    assert number(after, "slots_busy") == number(after, "waiting") == 0
    assert len(served.engine.steps) == 0, "what was counted is let go of"


GOOD = {"model": NAME, "prompt": "def"}
TALK = {"model": NAME, "messages": MESSAGES}
WRONG = [
    (GOOD | {"temperature": "hot"}, 400, "temperature"),
    (GOOD | {"temperature": 3}, 400, "temperature"),
    (GOOD | {"temperature": 0.001}, 400, None),
    (GOOD | {"top_p": 0}, 400, "top_p"),
    (GOOD | {"max_tokens": 0}, 400, "max_tokens"),
    (GOOD | {"max_tokens": -(10**30)}, 400, "max_tokens"),
    (GOOD | {"max_tokens": 10**9}, 400, "max_tokens"),
    (GOOD | {"max_tokens": 2.5}, 400, "max_tokens"),
    (GOOD | {"seed": 2**70}, 400, "seed"),
    (GOOD | {"n": 0}, 400, "n"),
    (GOOD | {"n": 100}, 400, "n"),
    (GOOD | {"n": 10**9}, 400, "n"),
    (GOOD | {"stop": [""]}, 400, "stop"),
    (GOOD | {"stop": ["a"] * 17}, 400, "stop"),
    (GOOD | {"stop_token_ids": [768]}, 400, None),
    (GOOD | {"logprobs": 21}, 400, "logprobs"),
    (GOOD | {"logit_bias": {"a": 1}}, 400, None),
    (GOOD | {"logit_bias": {"768": 1}}, 400, None),
    (GOOD | {"logit_bias": {"5": 101}}, 400, None),
    (GOOD | {"logit_bias": {str(i): 1 for i in range(600)}}, 400, None),
    (GOOD | {"echo": True}, 400, "echo"),
    (GOOD | {"best_of": 3}, 400, None),
    (GOOD | {"suffix": "x"}, 400, "suffix"),
    (GOOD | {"stream_options": {"include_usage": True}}, 400, None),
    (GOOD | {"top_kk": 3}, 400, "top_kk"),
    (GOOD | {"prompt": ""}, 400, None),
    (GOOD | {"prompt": []}, 400, "prompt"),
    (GOOD | {"prompt": [[]]}, 400, None),
    (GOOD | {"prompt": [1, "a"]}, 400, "prompt"),
    (GOOD | {"prompt": [10**6]}, 400, None),
    (GOOD | {"prompt": {"a": 1}}, 400, "prompt"),
    ({"prompt": "x"}, 400, "model"),
    ({"model": NAME}, 400, "prompt"),
    (GOOD | {"model": "gpt-5"}, 404, "model"),
    (GOOD | {"model": "../../etc/passwd"}, 404, "model"),
    (TALK | {"messages": []}, 400, "messages"),
    (TALK | {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages.0.role"),
    (TALK | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0.content"),
    (TALK | {"tools": [{"type": "function"}]}, 400, "tools"),
    (TALK | {"response_format": {"type": "json_object"}}, 400, "response_format"),
    (TALK | {"top_logprobs": 2}, 400, None),
    (TALK | {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ([], 400, None),
    ("text", 400, None),
    (None, 400, None),
]


@pytest.mark.parametrize(("body", "status", "param"), WRONG, ids=lambda value: str(value)[-40:])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_wrong_body_gets_one_error_in_the_apis_shape(served, body, status, param, streamed):
    path = CHAT if isinstance(body, dict) and "messages" in body else "/v1/completions"
    if streamed and isinstance(body, dict) and "stream_options" not in body:
        body = body | {"stream": True}
    got, answer, headers = served.ask("POST", path, raw=json.dumps(body).encode())
    assert (got, headers["content-type"]) == (status, "application/json"), answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert "\n" not in answer["error"]["message"]
    assert str(served.engine.model.path.parent) not in answer["error"]["message"]
    assert served.idle()


BROKEN = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"model":',
    b"[" * 100_000,
    b"NaN",
    b'{"seed": ' + b"9" * 10_000 + b"}",
    b"\x00" * 64,
]


@pytest.mark.parametrize("raw", BROKEN, ids=lambda raw: repr(raw[:12]))
def test_a_body_that_is_not_json_gets_400_and_the_server_lives_on(served, raw):
    status, answer, _ = served.ask("POST", "/v1/completions", raw=raw)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert served.ask("GET", "/health")[0] == 200


def test_a_prompt_beyond_the_context_is_refused_with_the_numbers(served):
    ids = [10] * 256
    status, answer, _ = served.post(prompt=ids)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "256 tokens" in answer["error"]["message"]
    assert "the prompt has 256" in answer["error"]["message"]
    status, answer, _ = served.post(prompt=ids[:200], max_tokens=57)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "you requested 257 tokens (200 in the prompt, 57 in the completion)" in answer["error"]["message"]
    assert served.post(prompt=ids[:200], max_tokens=56, ignore_eos=True)[1]["usage"]["total_tokens"] == 256
    status, answer, _ = served.post(prompt="a b " * 100_000)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", "/v1/completions", 405),
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/../../../../etc/passwd", 404),
        ("GET", "/static/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/%00", 404),
        ("POST", "/v1/embeddings", 404),
    ],
)
def test_another_path_or_method_gets_one_error_and_reaches_nothing(served, method, path, status):
    got, answer, headers = served.ask(method, path)
    assert got == status
    assert answer["error"]["type"] == "invalid_request_error"
    if status == 405:
        assert headers["allow"]
