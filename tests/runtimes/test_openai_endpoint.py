"""An endpoint of others: what it can be asked is found by asking, its key is nobody's to read, its answers are counted."""

from collections.abc import Collection
from typing import Any

import pytest
from imitated_api import METRICS, ImitatedApi
from scripted_server import ScriptedServer, answering, plain

from labkit.errors import LabError, ParameterError, RunError
from labkit.runtimes.load import at_once
from labkit.runtimes.openai_endpoint import VARIABLE, OpenAiEndpoint
from labkit.runtimes.probe import _grey
from labkit.runtimes.prometheus import our_counters, read_metrics
from labkit.runtimes.runtime import Ask

ALL = ("completions", "ids", "ignore_eos", "total", "running", "tokenize", "metrics", "images")


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_server_that_takes_all_is_asked_for_all() -> None:
    api = ImitatedApi(ALL, models=[{"id": "m", "max_model_len": 512, "owned_by": "vllm"}], several=2)
    with api.serve() as server, OpenAiEndpoint(server.url) as endpoint:
        can = endpoint.can
        assert (can.token_prompts, can.fixed_length, can.token_count, can.cached_tokens) == (True,) * 4
        assert (can.tokenizer, can.counters, can.drafts, can.images) == (True,) * 4
        assert (can.own_timings, can.own_process) == (False, False)
        assert endpoint.tokenize("hé") == [104, 233]
        assert endpoint.tokenize("") == []
        assert endpoint.detokenize([104, 233]) == "hé"
        assert endpoint.settings() == {"model": "m", "context": 512}
        told = endpoint.describe()
        assert (told["kind"], told["server"], told["version"], told["model"]) == ("openai", "vllm", "0.12.0", "m")
        assert told["address"] == server.url + "/v1"
        answer = endpoint.stream([Ask((1, 2, 3), 5)], at_once(1))[0]
        assert (answer.text, answer.completion_tokens, answer.prompt_tokens, answer.cached_tokens) == ("xxxxx", 5, 3, 1)
        assert len(answer.times) == 5
        assert answer.times[0] == answer.times[1]  # of one event
        assert answer.notes == ()
        asked = api.asked[-1]
        assert (asked["prompt"], asked["ignore_eos"], asked["max_tokens"]) == ([1, 2, 3], True, 5)
        endpoint.stream([Ask("hello", 2, fixed=False, temperature=0.5, seed=7)], at_once(1))
        assert "ignore_eos" not in api.asked[-1]
        assert (api.asked[-1]["temperature"], api.asked[-1]["seed"]) == (0.5, 7)


@pytest.mark.parametrize(
    ("takes", "can"),
    [
        (("completions", "total"), {"cached_tokens"}),
        (("completions", "total", "ids"), {"cached_tokens", "token_prompts"}),
        (("completions", "total", "ignore_eos"), {"cached_tokens", "fixed_length"}),
        (("completions", "ignore_eos", "ids"), set()),  # nobody could say that the length was kept
        (("completions", "total", "timings"), {"cached_tokens", "token_count", "own_timings"}),
        (("total", "images"), {"cached_tokens", "images"}),
        (("completions", "images"), {"images"}),
    ],
)
def test_a_server_that_refuses_what_it_does_not_know_is_asked_for_the_rest(
    takes: Collection[str], can: set[str]
) -> None:
    api = ImitatedApi(takes)
    with api.serve() as server:
        endpoint = OpenAiEndpoint(server.url)
        assert {name for name, able in vars(endpoint.can).items() if able} == can
        assert endpoint.found.completions == ("completions" in takes)
        answer = endpoint.stream([Ask("hello", 3, fixed=False, chat=True)], at_once(1))[0]
        assert (answer.good, answer.text, len(answer.times)) == (True, "xxx", 3)
        assert answer.completion_tokens == (3 if "total" in takes else None)
        refused = {
            "token_prompts": (Ask((1, 2), 2, fixed=False), "takes no token ids as a prompt"),
            "fixed_length": (Ask("x", 2), "cannot be told to emit exactly 2 tokens"),
            "images": (Ask("x", 2, fixed=False, images=(_grey(8),)), "takes no images"),
        }
        for ability in refused.keys() - can:
            ask, said = refused[ability]
            with pytest.raises(ParameterError, match=said):
                endpoint.stream([ask], at_once(1))
        if "completions" not in takes:
            with pytest.raises(ParameterError, match="has no /completions; ask with chat=True"):
                endpoint.stream([Ask("x", 2, fixed=False)], at_once(1))


def test_a_server_that_passes_over_what_it_does_not_know_is_found_out() -> None:
    api = ImitatedApi(("completions", "total"), lenient=True, several=2, stops_at=3)
    with api.serve() as server:
        endpoint = OpenAiEndpoint(server.url)
        assert not endpoint.can.images  # a picture made no prompt longer
        assert not endpoint.can.token_count
        short = endpoint.stream([Ask("hello", 6)], at_once(1))[0]  # it took the field, and did not heed it
        assert (short.failed, short.times) == ("short", ())
        assert short.error == "asked for 6 tokens, it sent 3, at the end token of its model"
        dealt = endpoint.stream([Ask("hello", 6, fixed=False)], at_once(1))[0]
        assert (len(dealt.times), dealt.finish) == (3, "stop")


def test_a_picture_goes_as_a_url_that_holds_it() -> None:
    api = ImitatedApi(ALL)
    with api.serve() as server:
        endpoint = OpenAiEndpoint(server.url)
        answer = endpoint.stream([Ask("What?", 2, images=(_grey(8), b"\xff\xd8\xff\xe0"))], at_once(1))[0]
        assert answer.prompt_tokens == 5 + 2 * 64
        parts = api.asked[-1]["messages"][0]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url", "image_url"]
        assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
        assert parts[2]["image_url"]["url"] == "data:image/jpeg;base64,/9j/4A=="
        with pytest.raises(ParameterError, match="an image is neither PNG nor JPEG"):
            endpoint.stream([Ask("What?", 2, images=(b"GIF89a",))], at_once(1))


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_with_v1_or_not(ending: str) -> None:
    with ImitatedApi(ALL).serve() as server:
        assert OpenAiEndpoint(server.url + ending).can.counters


def test_a_key_is_shown_to_the_server_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with ImitatedApi(ALL, key="hunter2").serve() as server:
        with pytest.raises(ParameterError, match=rf"answered 401: Incorrect API key.*or set {VARIABLE}"):
            OpenAiEndpoint(server.url)
        with pytest.raises(ParameterError) as refused:
            OpenAiEndpoint(server.url, key="hunter3")
        assert "hunter3" not in str(refused.value)
        assert "Incorrect API key provided: (key)" in str(refused.value)
        monkeypatch.setenv(VARIABLE, "hunter2")
        endpoint = OpenAiEndpoint(server.url)
        assert endpoint.stream([Ask("x", 2)], at_once(1))[0].good
        assert "hunter2" not in repr(endpoint) + repr(vars(endpoint)) + repr(endpoint.describe())
        server.script.key = "other"  # type: ignore[attr-defined]
        answer = endpoint.stream([Ask("x", 2)], at_once(1))[0]
        assert (answer.failed, answer.error) == (
            "status",
            "answered 401 Unauthorized: Incorrect API key provided: (key)",
        )


@pytest.mark.parametrize("before", range(250, 310, 6))
def test_a_key_is_hidden_where_a_long_message_is_cut(before: int) -> None:
    key = "hunter2-" * 5
    with ScriptedServer(answering(plain("401 No", b"x" * before + key.encode()))) as server:
        with pytest.raises(ParameterError) as refused:
            OpenAiEndpoint(server.url, key=key)
        assert "hunter" not in str(refused.value)
    for echo in (b"Bearer " + key.encode() + b" " * 90, b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * before + key.encode()):
        with ScriptedServer(answering(echo)) as server:
            with pytest.raises(LabError) as failed:
                OpenAiEndpoint(server.url, key=key)
            assert "hunter" not in str(failed.value)


def test_a_model_is_the_one_named_or_the_only_one() -> None:
    with ImitatedApi(ALL, models=("a", {"id": "/home/me/b.gguf", "aliases": ["bee"]})).serve() as server:
        with pytest.raises(ParameterError, match=r"has 2 models, name one: a, /home/me/b\.gguf"):
            OpenAiEndpoint(server.url)
        with pytest.raises(ParameterError, match=r"has no model 'c'; it has a, /home/me/b\.gguf"):
            OpenAiEndpoint(server.url, model="c")
        assert OpenAiEndpoint(server.url, model="bee").model == "bee"
        assert OpenAiEndpoint(server.url, model="/home/me/b.gguf").describe()["model"] == "b.gguf"
    many = ImitatedApi(ALL, models=[f"m{i}" for i in range(50)])
    with (
        many.serve() as server,
        pytest.raises(ParameterError, match=r"has 50 models, name one: m0, .*, m11 and 38 more"),
    ):
        OpenAiEndpoint(server.url)
    with ImitatedApi(ALL, models=()).serve() as server, pytest.raises(ParameterError, match="none is loaded"):
        OpenAiEndpoint(server.url)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (plain("404 Not Found", b""), ParameterError, "/v1/models answered 404: it lists no models"),
        (plain("200 OK", b"<html>"), RunError, "/v1/models is no list of models: <html>"),
        (plain("200 OK", b'{"data": [3]}'), RunError, "/v1/models is no list of models"),
        (b"SSH-2.0\r\n", RunError, "it does not speak HTTP"),
        (b"", RunError, "the connection was closed without a whole answer"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
            RunError,
            "the connection was closed without a whole answer",
        ),
    ],
)
def test_what_is_no_such_server_is_told_in_one_line(answer: bytes, error: type[Exception], said: str) -> None:
    with ScriptedServer(answering(answer)) as server, pytest.raises(error, match=said) as raised:
        OpenAiEndpoint(server.url)
    assert "\n" not in str(raised.value)


def test_nobody_there_is_told_in_one_line() -> None:
    with pytest.raises(RunError, match=r"http://127\.0\.0\.1:1/v1 did not answer: connection refused"):
        OpenAiEndpoint("http://127.0.0.1:1")


def test_a_server_that_fails_at_the_simplest_is_no_endpoint() -> None:
    def script(told: Any, connection: Any) -> None:
        models = plain("200 OK", b'{"data": [{"id": "m"}]}')
        connection.sendall(models if told.path == "/v1/models" else plain("500 Oops", b'{"error": "out of memory"}'))

    with (
        ScriptedServer(script) as server,
        pytest.raises(RunError, match="a plain request failed: answered 500 Oops: out of"),
    ):
        OpenAiEndpoint(server.url)


def test_metrics_of_each_kind_of_server_are_ours() -> None:
    assert our_counters(read_metrics(METRICS)) == {
        "prompt_tokens": 10.0, "completion_tokens": 8.0, "cached_tokens": 2.0, "requests": 5.0, "preempted": 0.0,
        "drafted": 6.0, "accepted": 5.0,
    }  # fmt: skip
    llama = "llamacpp:prompt_tokens_total 31\nllamacpp:tokens_predicted_total 9\n"
    assert our_counters(read_metrics(llama)) == {"prompt_tokens": 31.0, "completion_tokens": 9.0}
    llama += "llamacpp:prompt_tokens_cached_total 4\n"  # of newer builds: not among the others
    assert our_counters(read_metrics(llama)) == {"prompt_tokens": 35.0, "completion_tokens": 9.0, "cached_tokens": 4.0}
    assert our_counters(read_metrics("# TYPE x counter\nx{\nlabkit_prompt_tokens_total inf\n\x00")) == {}
