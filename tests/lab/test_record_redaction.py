"""Redaction: secrets, home, host and user names leave the text; ordinary words stay."""

import pytest

from labkit.lab.redact import Redactor, is_secret_name

REDACTOR = Redactor(
    environment={
        "HF_TOKEN": "tok-12345-very-secret",
        "DB_PASSWORD": "correct horse",
        "MY_KEY": "short",
        "KEY_FILE": "/etc/keys/card",
        "PATH": "/usr/bin:/bin",
    },
    home="/home/marguerite",
    host="workbench.attic.example",
    user="marguerite",
)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("token tok-12345-very-secret!", "token <secret>!"),
        ("it is correct horse now", "it is <secret> now"),
        ("hf_abcdefghijklmnopqrstuv", "<secret>"),
        ("key=sk-proj-abcdefghijklmnop1234", "key=<secret>"),
        ("AKIAABCDEFGHIJKLMNOP", "<secret>"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "<secret>"),
        ("Authorization: Bearer abcdef.ghijkl", "Authorization: Bearer <secret>"),
        ("{'authorization': 'Basic YWJjZGVmZw=='}", "{'authorization': 'Basic <secret>'}"),
        ("api_key='abcdef123456'", "api_key='<secret>'"),
        ('"password": "abcdef123456"', '"password": "<secret>"'),
        ("postgres://me:hunter2@db/x", "postgres://me:<secret>@db/x"),
        ("/home/marguerite/models/x.gguf", "~/models/x.gguf"),
        ("cd /home/marguerite", "cd ~"),
        ("/home/someone/x", "/home/<user>/x"),
        ("on workbench.attic.example and workbench", "on <host> and <host>"),
        ("by marguerite.", "by <user>."),
    ],
)
def test_what_is_private_is_taken_out(text: str, stored: str) -> None:
    assert REDACTOR.text(text) == stored


@pytest.mark.parametrize(
    "text",
    [
        "41.2 tok/s at width 8, KV key cache, token 12, 24 max_tokens",
        "/usr/share/home/x",
        "workbenches and marguerites",
        "risk-averse sk-1 hf_x",
        "short",
        "/etc/keys/card",
        "tokens=24 key=width",
        "eyJ is how they begin",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert REDACTOR.text(text) == text


def test_redacting_twice_changes_nothing_more() -> None:
    text = "hf_abcdefghijklmnopqrstuv /home/someone/x password=abcdef123456 by marguerite"
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) == once


def test_common_names_are_words_not_people() -> None:
    redactor = Redactor(environment={}, home="/root", host="localhost", user="root")
    assert redactor.text("the root of the test on localhost") == "the root of the test on localhost"
    assert redactor.text("/root/x but not /rooted/x") == "~/x but not /rooted/x"


def test_every_string_of_a_document_is_redacted_but_images() -> None:
    secret = "tok-12345-very-secret"
    document = {"a": [f"x {secret}", {"b": (secret, 1, None, 2.5)}], secret: True, "image/png": secret}
    assert REDACTOR.value(document) == {
        "a": ["x <secret>", {"b": ["<secret>", 1, None, 2.5]}],
        "<secret>": True,
        "image/png": secret,
    }


def test_secret_parameter_names() -> None:
    secret = ["token", "hf_token", "api_key", "aws_secret_key", "password", "client_secret", "apikey"]
    plain = ["tokens", "max_tokens", "first_token", "key", "cache_key", "keys", "secretary", "key_heads"]
    assert [name for name in secret + plain if is_secret_name(name)] == secret
