"""`lab generate`: its JSON, its streamed text, and one line with exit code 2 for everything a person can get wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from labkit.cli import main
from labkit.models.model import Model

TINY = Path(__file__).parent / "data" / "tiny"
MODEL = str(TINY / "llama-q4_1.gguf")
EXACT = ["--kv", "f32", "--arithmetic", "exact", "--temperature", "0", "--ignore-eos"]


@pytest.fixture
def lab(monkeypatch, capfd):
    """Runs `lab generate ARGUMENTS` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str, device: str | None = "0") -> tuple[int, str, str]:
        where = [] if device is None else ["--device", device]
        monkeypatch.setattr(sys, "argv", ["lab", "generate", *where, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        code = ended.value.code
        return (0 if code is None else int(code)), said.out, said.err

    return run


def process(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "labkit", "generate", "--device", "0", *arguments],
        input=stdin, capture_output=True, timeout=60, check=False, env=os.environ | environment,
    )  # fmt: skip


def text_of(ids: list[int]) -> str:
    with Model(MODEL) as model:
        return model.tokenizer.decode(ids)


# what comes out


@pytest.mark.quick
def test_json_holds_ids_text_log_probabilities_and_timings(lab):
    code, out, err = lab("--model", MODEL, *EXACT, "-n", "12", "--json", "--raw", "def main():")
    assert (code, err) == (0, "")
    got = json.loads(out)
    with Model(MODEL) as model:
        assert got["prompt_ids"] == model.tokenizer.encode("def main():", special=True)
        assert got["text"] == model.tokenizer.decode(got["token_ids"])
    assert len(got["token_ids"]) == len(got["logprobs"]) == len(got["top_logprobs"]) == 12
    for token, logprob, top in zip(got["token_ids"], got["logprobs"], got["top_logprobs"], strict=True):
        assert len(top) == 5
        assert top[0] == [token, logprob]
        assert [v for _, v in top] == sorted((v for _, v in top), reverse=True)
    assert (got["model"], got["kv"], got["arithmetic"], got["finish"]) == ("llama-q4_1", "f32", "exact", "length")
    timings = got["timings"]
    assert (timings["prompt_tokens"], timings["completion_tokens"]) == (len(got["prompt_ids"]), 12)
    assert timings["ttft_s"] > 0
    assert timings["decode_tok_s"] == pytest.approx(1 / timings["tpot_s"])


def test_ids_of_a_text_prompt_are_those_of_the_numpy_executor(lab):
    from labkit.engine.numpy_executor import NumpyExecutor

    _, out, _ = lab("--model", MODEL, *EXACT, "-n", "10", "--json", "--raw", "import os\nclass Path:")
    got = json.loads(out)
    with Model(MODEL) as model:
        logprobs = NumpyExecutor(model).logprobs(got["prompt_ids"] + got["token_ids"], 10)
    assert got["token_ids"] == logprobs.argmax(axis=1).tolist()
    np.testing.assert_allclose(got["logprobs"], logprobs.max(axis=1), rtol=0, atol=1e-3)


def test_without_raw_the_chat_template_is_used_and_with_it_special_tokens_are_parsed(lab):
    with Model(MODEL) as model:
        conversation = [{"role": "system", "content": "Short."}, {"role": "user", "content": "hi"}]
        text = model.chat(conversation)
        ids = model.tokenizer.encode(text, special=True)
        one = model.tokenizer.encode("<|im_start|>", special=True)
    assert len(one) == 1
    chat = json.loads(lab("-m", MODEL, "-n", "1", "--json", "--system", "Short.", "hi")[1])
    raw = json.loads(lab("-m", MODEL, "-n", "1", "--json", "--raw", text)[1])
    assert chat["prompt_ids"] == raw["prompt_ids"] == ids
    assert ids[0] == one[0]
    plain = json.loads(lab("-m", MODEL, "-n", "1", "--json", "--raw", "hi")[1])
    assert one[0] not in plain["prompt_ids"]


def test_streamed_text_is_that_of_the_json(lab):
    arguments = ("-m", MODEL, *EXACT, "-n", "40", "--raw", "def main():")
    text = json.loads(lab(*arguments, "--json")[1])["text"]
    code, out, err = lab(*arguments)
    assert (code, out, err) == (0, text + "\n", "")


def test_ignoring_the_end_token_neither_stops_nor_bans_it(lab):
    arguments = ("-m", MODEL, "-n", "5", "--json", "--raw", "x", "--logit-bias", "2=100")
    stopped = json.loads(lab(*arguments)[1])
    assert (stopped["token_ids"], stopped["finish"]) == ([2], "stop")
    going = json.loads(lab(*arguments, "--ignore-eos")[1])
    assert (going["token_ids"], going["finish"]) == ([2] * 5, "length")


def test_a_seed_repeats_the_text_and_a_stop_string_ends_it(lab):
    arguments = ("-m", MODEL, "-n", "20", "--json", "--raw", "x", "--temperature", "1", "--ignore-eos")
    first, again = (json.loads(lab(*arguments, "--seed", "4")[1]) for _ in range(2))
    assert first["token_ids"] == again["token_ids"]
    assert json.loads(lab(*arguments, "--seed", "5")[1])["token_ids"] != first["token_ids"]
    stop = first["text"].strip()[3:5]
    cut = json.loads(lab(*arguments, "--seed", "4", "--stop", stop)[1])
    assert (cut["text"], cut["finish"]) == (first["text"].split(stop)[0], "stop")


def test_a_dash_reads_standard_input():
    done = process("-m", MODEL, "-n", "3", "--json", "--raw", "-", stdin="größer\n".encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert text_of(json.loads(done.stdout)["prompt_ids"]) == "größer\n"


# what goes wrong


def refused(result: tuple[int, str, str], said: str) -> None:
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("lab: "), err
    assert said in err
    assert err.count("\n") == 1, "one line"
    assert "Traceback" not in err


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "/no/such.gguf", "hi"], "/no/such.gguf"),
        (["-m", "no-such-model", "hi"], "no-such-model"),
        (["-m", str(TINY), "hi"], "tiny"),
        (["-m", str(TINY / "llama-f32.npz"), "hi"], "llama-f32.npz"),
        (["-m", MODEL, ""], "the prompt is empty"),
        (["-m", MODEL, "  \n "], "the prompt is empty"),
        (["-m", MODEL, "--raw", ""], "the prompt is empty"),
        (["-m", MODEL, "--context", "8", "word " * 20], "a context of 8 takes at most 7"),
        (["-m", MODEL, "--context", "4", "hi"], "context=4"),
        (["-m", MODEL, "--context", "0", "hi"], "context=0"),
        (["-m", MODEL, "--context", "4096", "hi"], "context=4096 is more than the 2048 positions"),
        (["-m", MODEL, "word " * 3000], "takes at most 2047: shorten it"),
        (["-m", MODEL, "-n", "0", "hi"], "-n 0"),
        (["-m", MODEL, "-n", "-5", "hi"], "-n -5"),
        (["-m", MODEL, "--temperature", "nan", "hi"], "temperature=nan"),
        (["-m", MODEL, "--temperature", "-0.5", "hi"], "temperature=-0.5"),
        (["-m", MODEL, "--temperature", "inf", "hi"], "temperature=inf"),
        (["-m", MODEL, "--top-p", "nan", "hi"], "top_p=nan"),
        (["-m", MODEL, "--top-p", "1.5", "hi"], "top_p=1.5"),
        (["-m", MODEL, "--top-k", "-2", "hi"], "top_k=-2"),
        (["-m", MODEL, "--min-p", "-1", "hi"], "min_p=-1"),
        (["-m", MODEL, "--repetition-penalty", "0", "hi"], "repetition_penalty=0"),
        (["-m", MODEL, "--presence-penalty", "nan", "hi"], "presence_penalty=nan"),
        (["-m", MODEL, "--frequency-penalty", "-9", "hi"], "frequency_penalty=-9"),
        (["-m", MODEL, "--seed", "-1", "hi"], "seed=-1"),
        (["-m", MODEL, "--logit-bias", "2", "hi"], "--logit-bias '2' is not TOKEN_ID=VALUE"),
        (["-m", MODEL, "--logit-bias", "2=nan", "hi"], "logit_bias[2]=nan"),
        (["-m", MODEL, "--logit-bias", "99999=1", "hi"], "token 99999"),
        (["-m", MODEL, "--logprobs", "65", "--json", "hi"], "logprobs=65"),
        (["-m", MODEL, "--logprobs", "-1", "--json", "hi"], "logprobs=-1"),
        (["-m", MODEL, "--stop", "", "hi"], "stop strings are non-empty"),
        (["-m", MODEL, "--raw", "--system", "x", "hi"], "--system needs the chat template"),
    ],
    ids=lambda value: " ".join(a[-12:] for a in value)[-30:] if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_exit_code_2_within_two_seconds(lab, monkeypatch, tmp_path, arguments, said):
    monkeypatch.setenv("LABKIT_MODELS", str(tmp_path))
    began = time.monotonic()
    refused(lab(*arguments), said)
    assert time.monotonic() - began < 2


@pytest.mark.quick
@pytest.mark.parametrize("name", ["quantum", "99", "-1"])
def test_an_unknown_device_is_one_line_with_those_there_are(lab, name):
    refused(lab("-m", MODEL, "hi", device=name), "there are 0: ")


def test_an_unknown_device_in_the_environment_and_an_unknown_switch_are_one_line(lab, monkeypatch):
    monkeypatch.setenv("LABKIT_DISABLE", "everything")
    refused(lab("-m", MODEL, "hi", device="0x"), "LABKIT_DISABLE names everything")
    monkeypatch.delenv("LABKIT_DISABLE")
    done = process("-m", MODEL, "hi", LABKIT_DISABLE="int64", LABKIT_DEVICE="nothing of the kind")
    assert done.returncode == 0, "the option comes before the environment"


@pytest.mark.parametrize("keep", [0, 3, 4, 24, 5000, 100_000, 190_000])
def test_a_truncated_file_is_one_line_whatever_is_left_of_it(lab, tmp_path, keep):
    whole = Path(MODEL).read_bytes()
    assert keep < len(whole)
    (tmp_path / "cut.gguf").write_bytes(whole[:keep])
    began = time.monotonic()
    refused(lab("-m", str(tmp_path / "cut.gguf"), "hi"), "cut.gguf")
    assert time.monotonic() - began < 2


def test_logits_that_are_not_numbers_are_one_line(lab, tmp_path):
    with Model(MODEL) as model:
        norm = model.tensors["output_norm.weight"]
    broken = bytearray(Path(MODEL).read_bytes())
    broken[norm.offset : norm.offset + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "nan.gguf").write_bytes(broken)
    for form in (["--json"], []):
        code, out, err = lab("-m", str(tmp_path / "nan.gguf"), *form, "--raw", "hi")
        assert (code, out) == (2, "")
        assert err.startswith("lab: the model's logits are not numbers at position ")
        assert err.count("\n") == 1


def test_out_of_device_memory_is_one_line(lab, monkeypatch):
    from labkit.vulkan.device import Device

    monkeypatch.setattr(Device, "memory_free", lambda self: 100_000)
    refused(lab("-m", MODEL, "--raw", "hi"), "100,000 free")


def test_real_processes_end_with_one_line_within_two_seconds(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(Path(MODEL).read_bytes()[:9000])
    for arguments, stdin in (
        (["-m", str(tmp_path / "cut.gguf"), "hi"], b""),
        (["-m", MODEL, "-"], b""),
        (["-m", MODEL, "-"], b"\xff\xfe not text"),
        (["-m", MODEL, os.fsdecode(b"bad \xff bytes")], b""),
    ):
        best = float("inf")
        for _ in range(3):  # a machine may be busy once
            began = time.monotonic()
            done = process(*arguments, stdin=stdin)
            best = min(best, time.monotonic() - began)
            if best < 2:
                break
        refused((done.returncode, done.stdout.decode(), done.stderr.decode()), "")
        assert best < 2


def test_a_wrong_option_is_explained_by_the_command_line_itself():
    for arguments in (["--kv", "f8", "hi"], ["-n", "many", "hi"], []):
        done = process(*arguments)
        assert done.returncode == 2
        assert b"Error" in done.stderr
        assert b"Traceback" not in done.stderr


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """`lab generate` going on for as long as the tiny model's context lasts."""
    command = [sys.executable, "-u", "-m", "labkit", "generate", "--device", "0", "-m", MODEL, "--raw", "x"]
    running = subprocess.Popen(
        [*command, "-n", "1900", "--ignore-eos", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stderr is not None
    return running


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_interrupt_ends_it_with_130_and_no_traceback(form):
    running = start(*(["--json"] if form == "json" else []))
    if form == "text":
        running.stdout.read(1)
    else:
        end = time.monotonic() + 20
        while "libvulkan" not in Path(f"/proc/{running.pid}/maps").read_text() and time.monotonic() < end:
            time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert running.returncode == 130, err
    assert err.strip() == b""
    assert form == "text" or out == b"", "no half of a JSON object"


def test_a_reader_that_leaves_early_is_no_error_of_ours():
    running = start()
    running.stdout.read(1)
    running.stdout.close()
    assert b"Traceback" not in running.stderr.read()
    running.stderr.close()
    assert running.wait(20) != 0
