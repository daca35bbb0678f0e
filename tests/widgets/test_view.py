"""What the views share: work on a thread, one line for what goes wrong, an interrupt, and a picture without a kernel."""

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from labkit import widgets
from labkit.errors import LabError, ParameterError, RunError
from labkit.show.pieces import Html, paragraph
from labkit.widgets.view import View, one_line


class Counter(View):
    """Counts until it is stopped."""

    what = "counter"

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def html(self) -> Html:
        return paragraph(f"at {self.count}")

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "running": self.running}

    def work(self) -> None:
        while not self._halt.wait(0.005):
            self.count += 1
            self.changed()


def test_work_goes_on_beside_the_caller_until_it_is_stopped_and_can_begin_again() -> None:
    view, seen = Counter(), threading.Event()
    view.followers.append(lambda one: seen.set() if one.count > 3 else None)
    for _ in range(2):
        seen.clear()
        view.begin(view.work)
        assert seen.wait(5)
        assert view.running
        with pytest.raises(ParameterError, match="at work already"):
            view.begin(view.work)
        view.stop()
        assert view.wait(5)
        assert not view.running
        assert view.error == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RunError("no such run; `lab runs` lists them"), "no such run; `lab runs` lists them"),
        (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_what_goes_wrong_in_the_thread_is_one_line_of_the_view(error: BaseException, line: str) -> None:
    def work() -> None:
        raise error

    view = Counter()
    view.begin(work)
    assert view.wait(5)
    assert view.error == line == one_line(error)
    assert "\n" not in view.error
    assert view.error in view.picture()
    view.attempt(lambda: int("x"))
    assert view.error.startswith("ValueError: invalid literal")


def test_an_interrupt_of_wait_stops_the_work_and_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Counter()
    view.begin(view.work)
    thread = view._thread
    assert thread is not None
    real = thread.join

    def interrupted(timeout: float | None = None) -> None:
        monkeypatch.setattr(thread, "join", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        view.wait()
    assert not view.running


def test_a_closed_view_keeps_its_picture_and_takes_no_more_work() -> None:
    with Counter() as view:
        view.begin(view.work)
        time.sleep(0.05)
    view.close()
    assert view.closed
    assert not view.running
    assert view.picture() == paragraph(f"at {view.count}")
    assert view.page("Counts").startswith("<!doctype html>")
    with pytest.raises(ParameterError, match="is closed; make another"):
        view.begin(view.work)


def test_views_are_named_lazily_and_bring_in_nothing_of_the_notebook() -> None:
    assert set(widgets.__all__) == {"explore", "kernel_lab", "playground", "roofline", "telemetry", "watch"}
    assert all(callable(getattr(widgets, name)) for name in widgets.__all__)
    with pytest.raises(AttributeError, match="no 'slider'; it has explore"):
        _ = widgets.slider
    assert issubclass(ParameterError, LabError)
    modules = ", ".join(f"labkit.widgets.{name}" for name in widgets.__all__)
    heavy = "{'ipywidgets', 'plotly', 'duckdb', 'pandas', 'IPython'}"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
