"""Many processes write the ledger at once and one is killed: nothing whose append returned is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ledger_runs import make_lab, make_run

from labkit.lab.entries import read_book
from labkit.lab.events import EntryEvent, read_events
from labkit.lab.ledger import append, render
from labkit.lab.recheck import verify
from labkit.lab.render import LEDGERS

WRITERS, ENTRIES = 6, 100
SOURCE = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from pathlib import Path
from ledger_runs import DEVICE, make_run
from labkit.lab.ledger import append
root, writer, entries = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for entry in range(entries):
    device = DEVICE | {"uuid": f"{writer:032x}"}
    folder = make_run(root, 5.0 + entry / 1000, number=1000 * writer + entry, device=device)
    append(root, folder)
    print(folder.name, flush=True)
"""


HOLDER = """
import sys, time
from pathlib import Path
from labkit.lab.events import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def start(code: str, *arguments: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(SOURCE), str(SOURCE / "tests" / "lab"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_killed_while_it_holds_the_ledger_frees_it(tmp_path: Path) -> None:
    root = make_lab(tmp_path / "lab")
    holder = start(HOLDER, str(root))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=10)
    began = time.monotonic()
    assert len(append(root, make_run(root))) == 1
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_six_processes_of_which_one_is_killed_lose_no_entry_whose_append_returned(tmp_path: Path) -> None:
    root = make_lab(tmp_path / "lab")
    writers = [start(WRITER, str(root), str(writer), str(ENTRIES)) for writer in range(WRITERS)]
    victim = writers[0]
    assert victim.stdout is not None
    returned = [victim.stdout.readline().strip() for _ in range(20)]
    victim.send_signal(signal.SIGKILL)
    returned += victim.communicate(timeout=60)[0].split()
    for writer in writers[1:]:
        lines = writer.communicate(timeout=240)[0].split()
        assert writer.returncode == 0
        assert len(lines) == ENTRIES
        returned += lines
    assert victim.returncode == -signal.SIGKILL
    assert 20 <= len(returned) - ENTRIES * (WRITERS - 1) < ENTRIES

    events = read_events(root, fresh=True)
    entered = [event.run for event in events.of(EntryEvent)]
    assert events.damaged == ()
    assert len(entered) == len(set(entered))
    assert set(returned) <= set(entered)
    assert len(entered) <= len(returned) + 1  # the victim may have died between the event and its word
    render(root)
    book = read_book(events)
    assert sorted(entry.verdict.runs for entry in book.live)[1:] == [ENTRIES] * (WRITERS - 1)
    text = (root / "FINDINGS.md").read_text()
    assert all(entry.anchor in text for entry in book.entries)
    assert text.startswith("# Findings\n\nWhat we found.\n")
    assert not [fault for fault in verify(root).faults if fault.kind in ("damaged", "edited", "stale")]
    assert all((root / name).exists() for name in LEDGERS)
