"""`%load_ext labkit`: verbs and shaders in a notebook's cells, faults in plain lines, and a kernel that lives through it all."""

import atexit
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from page_rules import check_noun
from traitlets.config import Config

import labkit
from labkit.errors import ParameterError
from labkit.lab import magics, verb_process
from labkit.lab.entries import Book
from labkit.lab.init import make_lab
from labkit.lab.kernel import install_kernel, with_labkit
from labkit.lab.lock import device_lock
from labkit.vulkan.device import Device

SHADER = """\
#version 450
#extension GL_EXT_buffer_reference : require
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 8;
layout(constant_id = 1) const float FACTOR = 2.0;
layout(buffer_reference, std430) buffer Floats { float at[]; };
layout(push_constant) uniform Push { Floats x; uint count; };
void main() {
  uint i = gl_GlobalInvocationID.x;
  if (i < count) x.at[i] *= FACTOR;
}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_lab(tmp_path / "mine")
    monkeypatch.setenv("LABKIT_LAB", str(root))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return root


@pytest.fixture
def shell(mine: Path) -> Iterator[InteractiveShell]:
    made = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    made.extension_manager.load_extension("labkit")
    yield made
    atexit.unregister(made.atexit_operations)
    made.atexit_operations()


def cell(shell: InteractiveShell, code: str) -> Any:
    return shell.run_cell(code)


def fault(shell: InteractiveShell, code: str) -> str:
    """What a cell ends with that fails as it should: no traceback, a few lines."""
    done = cell(shell, code)
    assert isinstance(done.error_in_exec, magics.CellError), done
    assert done.error_in_exec._render_traceback_() == [str(done.error_in_exec)]
    return str(done.error_in_exec)


def test_loading_it_makes_the_labs_template_the_default_of_plotly(shell: InteractiveShell) -> None:
    import plotly.io

    assert plotly.io.templates.default == "lab"
    shell.extension_manager.reload_extension("labkit")
    assert {"lab"} <= set(shell.magics_manager.magics["line"])
    assert {"glsl"} <= set(shell.magics_manager.magics["cell"])


def test_a_verb_acts_on_this_notebooks_lab_and_shows_what_it_says(
    shell: InteractiveShell, mine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shell.user_ns["words"] = "the fan is loud"
    assert cell(shell, '%lab note finding "{words}"').success
    assert "the fan is loud" in (mine / "FINDINGS.md").read_text()
    assert "FINDINGS.md" in capfd.readouterr().out
    book = cell(shell, "%lab ledger").result
    assert isinstance(book, Book)
    assert "1 note by hand" in check_noun(book)
    assert cell(shell, "%lab runs").result == []


def test_a_verb_that_fails_is_a_line_and_fails_the_cell(shell: InteractiveShell, capfd) -> None:
    assert fault(shell, "%lab nope") == "lab nope ended with 2: it was given what it cannot use"
    assert "No such command 'nope'" in capfd.readouterr().out
    assert "No closing quotation" in fault(shell, "%lab note 'finding")
    assert "a notebook already" in fault(shell, "%lab notebook")
    assert "cannot be started" in fault(shell, '%lab note "a\0b"')


def test_a_timed_verb_does_not_wait_for_the_notebook_that_asks(shell: InteractiveShell) -> None:
    with device_lock("some-card", "batch-decode"):
        said = fault(shell, "%lab run template --quick")
        assert cell(shell, "%lab run --list").success
    assert "would wait for ever: this notebook holds the device for batch-decode" in said


def test_without_a_lab_it_says_so(shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_LAB", str(tmp_path / "nowhere"))
    assert "is not a lab" in fault(shell, "%lab ledger")


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes every verb a shell script."""

    def become(script: str) -> None:
        path = tmp_path / "verb"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return become


def interrupt_at(word: str, seen: list[str], times: int = 1) -> Callable[[str], None]:
    def write(text: str) -> None:
        seen.append(text)
        if word in text:
            for number in range(times):
                threading.Timer(0.1 + 0.5 * number, os.kill, (os.getpid(), signal.SIGINT)).start()

    return write


def test_an_interrupt_is_passed_on_and_the_last_words_are_still_shown(verb: Callable[[str], None]) -> None:
    verb("trap 'echo tidied; exit 1' INT\necho started\nsleep 30 & wait")
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        verb_process.run_verb(["run"], interrupt_at("started", seen))
    assert "".join(seen) == "started\ntidied\n"


def test_a_verb_that_will_not_go_is_ended_by_a_second_interrupt(verb: Callable[[str], None]) -> None:
    verb("trap '' INT\necho started\nsleep 30 & wait\nwait")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        verb_process.run_verb(["run"], interrupt_at("started", [], times=2))
    assert time.monotonic() - began < 10


def test_what_a_verb_leaves_running_holds_nobody_up(verb: Callable[[str], None]) -> None:
    verb("sleep 5 &\nprintf 'caf\\303\\251'\nexit 3")
    seen: list[str] = []
    began = time.monotonic()
    assert verb_process.run_verb(["run"], seen.append) == 3
    assert "".join(seen) == "café"
    assert time.monotonic() - began < 4


def test_a_verb_is_not_taken_for_the_run_it_is_called_in(verb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_RUN", "/some/run")
    verb('echo "run=$LABKIT_RUN"; cat; echo "$@"')
    seen: list[str] = []
    assert verb_process.run_verb(["ledger", "list"], seen.append) == 0
    assert "".join(seen) == "run=\n-m labkit ledger list\n"


def test_a_cell_of_glsl_becomes_a_kernel_that_runs(shell: InteractiveShell, device: Device) -> None:
    shell.user_ns["gpu"] = device
    done = cell(shell, f"%%glsl scale --set LOCAL=4 --set FACTOR=3\n{SHADER}")
    assert done.success
    kernel = shell.user_ns["scale"]
    assert done.result is kernel
    assert isinstance(kernel, labkit.Kernel)
    assert kernel.device is device
    assert kernel.interface.local_size == (4, 1, 1)
    with device.pool() as pool:
        x = pool.buffer(np.arange(6, dtype=np.float32))
        kernel.run(2, x=x, count=6)
        assert x.download(np.float32).tolist() == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def test_errors_stand_at_their_lines_of_the_cell(shell: InteractiveShell, device: Device) -> None:
    shell.user_ns["gpu"] = device
    text = f"%%glsl scale\n{SHADER}".replace("*= FACTOR", "*= NOTHING")
    place = next(number for number, line in enumerate(text.splitlines(), 1) if "NOTHING" in line)
    said = fault(shell, text)
    assert f"scale, line {place} of the cell: error: 'NOTHING' : undeclared identifier" in said
    assert "    if (i < count) x.at[i] *= NOTHING;" in said
    assert "scale" not in shell.user_ns


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "required: name"),
        ("for", "'for' cannot be a kernel's name"),
        ("a-b", "'a-b' cannot be a kernel's name"),
        ("scale --set LOCAL", "write CONSTANT=VALUE"),
        ("scale --set LOCAL=x", "'x' is not a number, true or false"),
        ("scale --set LOCAL=1 --set LOCAL=2", "LOCAL is set twice"),
        ("scale --set NONE=1", "has no specialisation constant 'NONE'; it has FACTOR, LOCAL"),
        ("scale --set LOCAL=100000", "a workgroup of 100000x1x1 is over"),
        ("scale --subgroup x", "invalid int value"),
        ("scale --device nobody", "no Device or Engine of that name"),
        ("scale 'a", "No closing quotation"),
        ("scale more", "unrecognized arguments: more"),
    ],
)
def test_a_wrong_line_is_one_line(shell: InteractiveShell, device: Device, line: str, said: str) -> None:
    shell.user_ns["gpu"] = device
    found = fault(shell, f"%%glsl {line}\n{SHADER}")
    assert said in found
    assert "\n" not in found


def test_of_several_devices_one_must_be_named(shell: InteractiveShell, device: Device) -> None:
    with Device() as other:
        shell.user_ns |= {"gpu": device, "same": device, "other": other}
        assert "several devices (gpu, other): name one, as --device gpu" in fault(shell, f"%%glsl scale\n{SHADER}")
        kernel = cell(shell, f"%%glsl scale --device other\n{SHADER}").result
        assert kernel.device is other
        buffer = device.buffer(np.zeros(4, np.float32))
        with pytest.raises(ParameterError, match="x is a buffer of another Device than the kernel's"):
            kernel.run(1, x=buffer, count=4)


def test_a_kernel_lives_through_failures_and_interrupts(mine: Path, tmp_path: Path) -> None:
    from jupyter_client.manager import KernelManager

    scratch = tmp_path / "k"
    scratch.mkdir()
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\necho started\nsleep 30 & wait\n")
    slow.chmod(0o755)
    environment = with_labkit(os.environ) | install_kernel(scratch)
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(scratch / "s"))
    manager.kernel_spec_manager.kernel_dirs = [str(scratch / "share" / "kernels")]
    manager.start_kernel(env=environment, cwd=str(mine))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)

        def run(code: str, at_text: Callable[[str], None] = lambda text: None) -> tuple[str, list[str]]:
            """The reply's status and the traceback's lines."""
            said: list[str] = []
            asked = client.execute(code)
            while True:
                message = client.get_iopub_msg(timeout=60)
                if message["parent_header"].get("msg_id") != asked:
                    continue
                if message["msg_type"] == "stream":
                    at_text(message["content"]["text"])
                if message["msg_type"] == "error":
                    said = message["content"]["traceback"]
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    break
            while (reply := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != asked:
                pass
            return reply["content"]["status"], said

        assert run("import plotly.io; assert plotly.io.templates.default == 'lab'") == (
            "ok",
            [],
        )  # the extension is loaded
        assert run("%lab nope") == ("error", ["lab nope ended with 2: it was given what it cannot use"])
        interrupted = queue.Queue[str]()

        def interrupt(text: str) -> None:
            if "started" in text:
                interrupted.put(text)
                manager.interrupt_kernel()

        code = f"import sys; real, sys.executable = sys.executable, {str(slow)!r}\n%lab bench"
        assert run(code, interrupt) == ("error", ["lab bench was interrupted"])
        assert interrupted.qsize() == 1
        assert run("assert 1 + 1 == 2") == ("ok", [])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
