"""Progress and log: what is said while a run goes, in place on a terminal and in few lines elsewhere."""

import io
from pathlib import Path

import pytest
from page_rules import check_page

from labkit.lab import progress as progress_module
from labkit.lab import reporter as reporter_module
from labkit.lab.folder import read_json
from labkit.lab.progress import Pace, ProgressDisplay, duration, progress_text, write_progress
from labkit.lab.redact import Redactor
from labkit.lab.reporter import Reporter, RunLog, bar


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (progress_module, reporter_module):
            monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_read_as_a_person_says_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_left_follows_the_pace_and_starts_anew_with_new_work(clock: Clock) -> None:
    pace = Pace()
    assert pace.left(0, 10) is None
    clock.now += 6
    assert pace.left(2, 10) == pytest.approx(24)
    clock.now += 6
    assert pace.left(8, 10) == pytest.approx(3)
    assert pace.left(0, 5) is None


def test_a_line_of_progress() -> None:
    assert progress_text(12, 60, "width 8", 40) == "12/60 width 8 (about 40 s left)"
    assert progress_text(60, 60, "", 0) == "60/60"
    assert progress_text(0, 0, "waiting for the device", None) == "waiting for the device"
    assert (bar(0, 4, 4), bar(1, 4, 4), bar(9, 4, 4)) == ("░░░░", "█░░░", "████")


def test_the_progress_file_is_not_written_for_every_step_but_for_the_last(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "progress.json"
    write_progress(path, 0, 1000, "a")
    for step in range(1, 1000):
        write_progress(path, step, 1000, "a")
    assert read_json(path)["done"] == 0
    clock.now += 1
    write_progress(path, 500, 1000, "a")
    assert read_json(path)["done"] == 500
    write_progress(path, 501, 1000, "b")
    assert read_json(path)["text"] == "b"
    write_progress(path, 1000, 1000, "b")
    assert read_json(path)["done"] == 1000


def test_without_a_terminal_a_cell_is_a_line_and_a_long_one_a_line_every_ten_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.cells = 12
    reporter.cell_start(3, "for cell in plan")
    for step in range(200):
        clock.now += 0.1
        reporter.progress({"done": step, "total": 200, "text": "width 8"})
        reporter.tick()
    reporter.cell_end("failed")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("[ 3/12]")
    assert "10 s  for cell in plan: " in lines[0]
    assert "/200 width 8 (about " in lines[0]
    assert lines[2] == "[ 3/12]     20 s failed  for cell in plan"


def test_what_a_run_waits_for_is_said_at_once_and_once(clock: Clock) -> None:
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.cells = 2
    reporter.cell_start(1, "x")
    for _ in range(5):
        clock.now += 0.2
        reporter.progress({"done": 0, "total": 0, "text": "waiting for the device: in use by bench"})
    assert stream.getvalue().count("in use by bench") == 1


def test_between_two_steps_the_line_says_how_far_the_last_one_was(clock: Clock) -> None:
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.cells = 2
    reporter.cell_start(1, "Measure")
    clock.now += 1
    reporter.progress({"done": 1, "total": 3, "text": "width 8"})
    for _ in range(40):
        clock.now += 0.25
        reporter.tick()
    assert stream.getvalue().splitlines() == ["[1/2]     10 s  Measure: 1/3 width 8"]


def test_a_damaged_progress_file_is_no_progress() -> None:
    stream = io.StringIO()
    Reporter(stream=stream).progress({"done": "many", "text": None})
    assert stream.getvalue() == ""


def test_the_log_holds_whole_lines_the_last_state_of_a_bar_and_no_secret_across_a_seam(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.txt", Redactor(environment={"HF_TOKEN": "tok-12345-very-secret"}, home="", user=""))
    for piece in ("one\ntw", "o\n", "10%\r", "50%\r", "100%\n", "tok-12345-", "very-secret\n", "no end"):
        log.stream("cell 1", piece)
    log.stream("cell 2", "other\n")
    log.flush()
    lines = [line.partition(" ")[2] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert lines == [
        *("cell 1: one", "cell 1: two", "cell 1: 100%", "cell 1: <secret>"),
        *("cell 2: other", "cell 1: no end"),
    ]


def test_by_hand_without_a_terminal_progress_is_plain_lines_and_its_end_is_never_left_out(clock: Clock) -> None:
    stream = io.StringIO()
    display = ProgressDisplay(stream=stream)
    for step in range(1, 101):
        clock.now += 0.01
        display.show(step, 100, "width 8")
    display.close()
    lines = stream.getvalue().splitlines()
    assert 9 <= len(lines) <= 12
    assert lines[-1] == "100/100 width 8"


def test_in_a_notebook_the_bar_has_its_words_beside_it_and_in_the_text(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    import IPython.display

    shown: list[tuple[dict[str, str], dict[str, object]]] = []

    class Handle:
        def update(self, page: dict[str, str], **options: object) -> None:
            shown.append((page, options))

    def display(page: dict[str, str], **options: object) -> Handle:
        Handle().update(page, **options)
        return Handle()

    monkeypatch.setattr(progress_module, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", display)
    line = ProgressDisplay()
    for done, words in ((0, "<b>begun</b>"), (4, "done")):
        line.show(done, 4, words)
        clock.now += 1
    (first, _), (last, options) = shown
    assert first["text/plain"] == "0/4 <b>begun</b>"
    assert last["text/plain"] == "4/4 done"
    assert options == {"raw": True}
    assert check_page(first["text/html"]) == "0/4 <b>begun</b>"
    assert check_page(last["text/html"]) == "4/4 done"
