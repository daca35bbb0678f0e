"""Many processes write the ledger at once and are killed at random: nothing is lost, nothing doubled."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ledger_runs import make_lab, make_run

from labkit.lab.entries import read_book
from labkit.lab.events import EntryEvent, NoteEvent, events_folder, read_events
from labkit.lab.ledger import append, render
from labkit.lab.ledger_files import ledger_text, read_ledger
from labkit.lab.recheck import verify
from labkit.lab.render import render_book

WRITERS, ENTRIES, KILLS = 6, 100, 12
SOURCE = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from pathlib import Path
from ledger_runs import DEVICE, make_run
from labkit.lab.ledger import append
root, writer, entries = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for entry in range(entries):
    number = 1000 * writer + entry
    [*made] = (root / "data" / "runs").glob(f"*-{number:08x}/run.json")  # written last, by a process before this one
    device = DEVICE | {"uuid": f"{writer:032x}"}
    folder = made[0].parent if made else make_run(root, 5.0 + entry / 1000, number=number, device=device, again=True)
    append(root, folder)
    print(folder.name, flush=True)
"""
NOTER = """
import sys
from pathlib import Path
from labkit.lab.ledger import note
root, writer, entries = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for entry in range(entries):
    note(root, f"note {writer} {entry}")
    print(f"note {writer} {entry}", flush=True)
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


def test_what_a_killed_process_left_aside_is_no_event_and_goes(tmp_path: Path) -> None:
    root = make_lab(tmp_path / "lab")
    [event] = append(root, make_run(root, 5.0, number=1))
    aside = event.with_name(f".{event.name}.0123abcd")
    aside.write_bytes(event.read_bytes()[:40])
    append(root, make_run(root, 5.0, number=2))
    assert not aside.exists()
    mine, left = root / ".FINDINGS.md.swp", root / ".FINDINGS.md.k3_x9abc"
    mine.touch()
    left.touch()
    append(root, make_run(root, 5.0, number=3))
    assert (mine.exists(), left.exists()) == (True, False)
    assert verify(root).faults == ()


@pytest.mark.slow
def test_six_writers_killed_at_random_and_started_again_lose_no_entry_and_double_none(tmp_path: Path) -> None:
    root, dice = make_lab(tmp_path / "lab"), random.Random(20261201)
    writers = {writer: start(WRITER, str(root), str(writer), str(ENTRIES)) for writer in range(WRITERS)}
    kills, returned, deadline = 0, set[str](), time.monotonic() + 240
    while writers:
        assert time.monotonic() < deadline, "the writers do not come to an end"
        time.sleep(dice.uniform(0.1, 0.6))
        for number, writer in list(writers.items()):
            if writer.poll() is not None:
                returned |= set(writer.communicate()[0].split())
                assert writer.returncode == 0
                del writers[number]
        if writers and kills < KILLS:
            victim = dice.choice(sorted(writers))
            writers[victim].send_signal(signal.SIGKILL)
            returned |= set(writers[victim].communicate()[0].split())
            kills += 1
            writers[victim] = start(WRITER, str(root), str(victim), str(ENTRIES))
    assert kills == KILLS
    events = read_events(root, fresh=True)
    entered = [event.run for event in events.of(EntryEvent)]
    assert events.damaged == ()
    assert len(entered) == len(set(entered)) == WRITERS * ENTRIES
    assert set(entered) == returned
    assert sorted(entry.verdict.runs for entry in read_book(events).live) == [ENTRIES] * WRITERS
    render(root)  # the last of a process that was killed between its event and its rendering
    for name, blocks in render_book(read_book(events)).items():
        head = read_ledger(root / name).head
        fresh = ledger_text(head, blocks, events.state, events.stored[-1].name)
        assert (root / name).read_text() == fresh, name
    assert (root / "FINDINGS.md").read_text().startswith("# Findings\n\nWhat we found.\n")
    assert verify(root).faults == ()
    left = [path.name for folder in (root, events_folder(root)) for path in folder.glob(".*") if path.name != ".lock"]
    assert left == []


@pytest.mark.slow
def test_a_note_whose_writer_was_told_it_is_there_is_there_once(tmp_path: Path) -> None:
    root, dice = make_lab(tmp_path / "lab"), random.Random(2)
    writers = [start(NOTER, str(root), str(writer), str(ENTRIES)) for writer in range(WRITERS)]
    for victim in writers[:3]:
        time.sleep(dice.uniform(0.5, 1.5))
        victim.send_signal(signal.SIGKILL)
    returned = [line for writer in writers for line in writer.communicate(timeout=120)[0].splitlines()]
    render(root)
    noted = [event.text for event in read_events(root, fresh=True).of(NoteEvent)]
    assert len(noted) == len(set(noted))
    assert set(returned) <= set(noted)
    assert len(noted) <= len(returned) + 3  # a victim may have died between its event and its word
    assert verify(root).faults == ()
