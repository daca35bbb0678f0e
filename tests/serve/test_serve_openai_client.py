"""The official `openai` client, unmodified, against the server: completions and chat, streamed and not, and its errors."""

import pytest
from running_server import NAME

openai = pytest.importorskip("openai", reason="the openai client is not installed; it comes with labkit[dev]")

PROMPT = "def main(argument"
MESSAGES = [{"role": "user", "content": "Say something"}]


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none is needed", max_retries=0, timeout=60) as made:
        yield made


def test_it_lists_the_model(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "labkit"


def test_its_completions_are_the_engines(served, client):
    want = served.engine.generate([PROMPT], max_tokens=24, temperature=0.8, seed=3, logprobs=2)[0]
    options = {"model": NAME, "prompt": PROMPT, "max_tokens": 24, "temperature": 0.8, "seed": 3, "logprobs": 2}
    done = client.completions.create(**options)
    assert done.choices[0].text == want.text
    assert done.usage.completion_tokens == len(want.token_ids)
    assert done.choices[0].logprobs.token_logprobs[0] == pytest.approx(want.logprobs[0], abs=2e-6)
    text, usage = "", None
    for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == want.text
    assert usage == done.usage


def test_its_conversations_are_the_engines(served, client):
    want = served.engine.chat(MESSAGES, max_tokens=24, temperature=0.0, logprobs=4)
    options = {"model": NAME, "messages": MESSAGES, "max_completion_tokens": 24, "temperature": 0, "logprobs": True}
    done = client.chat.completions.create(**options, top_logprobs=4, extra_body={"top_k": 50})
    assert done.choices[0].message.content == want.text
    assert [len(entry.top_logprobs) for entry in done.choices[0].logprobs.content] == [4] * len(want.token_ids)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == want.text
    assert chunks[-1].choices[0].finish_reason == done.choices[0].finish_reason


def test_leaving_its_stream_frees_the_slot(served, client):
    before = served.app.counters.finishes["cancelled"]
    stream = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=230, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert served.idle()
    assert served.app.counters.finishes["cancelled"] == before + 1


@pytest.mark.parametrize(
    ("error", "options"),
    [
        ("NotFoundError", {"model": "gpt-5", "prompt": "x"}),
        ("BadRequestError", {"model": NAME, "prompt": "x", "temperature": 99}),
        ("BadRequestError", {"model": NAME, "prompt": [1] * 1000}),
    ],
)
def test_it_raises_its_own_errors(client, error, options):
    with pytest.raises(getattr(openai, error)) as caught:
        client.completions.create(**options)
    assert caught.value.body["type"] == "invalid_request_error"


def test_it_is_told_of_a_wrong_key_and_of_a_full_queue(serving):
    running = serving(slots=1, queue=0, key="a key of the tests")
    wrong = openai.OpenAI(base_url=f"{running.url}/v1", api_key="wrong", max_retries=0)
    with wrong as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="a key of the tests", max_retries=0) as client:
        running.app.queue.take(1)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model=NAME, prompt="x")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        running.app.queue.give_back(1)
        assert client.completions.create(model=NAME, prompt="x").usage.prompt_tokens >= 1
