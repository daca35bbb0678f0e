"""A live view: what it says at any moment, and the thread that works for it; it needs no browser."""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from labkit.errors import LabError, ParameterError
from labkit.lab.progress import in_notebook
from labkit.show.pieces import Html, mark, paragraph

if TYPE_CHECKING:
    from labkit.widgets.face import Face


class View(ABC):
    """What the views share. `html` and `figure` are its picture, which the notebook keeps; `state` is the same as data.

    Work goes on in a thread: `stop` ends it, `wait` waits for it, and an interrupt of `wait` stops it. What goes wrong
    there is one line, `error`. `followers` are called with the view when something changed, on the thread that changed it.
    `close` ends all, and leaves the picture without its controls."""

    what = "view"
    plots = False  # whether it has a figure
    live = True  # whether there is anything to work or to follow; else its picture is all

    def __init__(self) -> None:
        self.error = ""
        self.running = False
        self.closed = False
        self.followers: list[Callable[[Any], None]] = []
        self._halt = threading.Event()
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._face: Face | None = None

    # What a view gives

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What it shows, as plain values."""

    @abstractmethod
    def html(self) -> Html:
        """What it shows in words, tables and bars."""

    def figure(self) -> Any:
        """What it shows as a plotly figure, or None."""
        return None

    def controls(self) -> Sequence[Any]:
        """The widgets a person works it with, made anew for each place it is shown in."""
        return ()

    def follow_controls(self) -> None:
        """Set the widgets to the present state."""
        return  # a view without controls has none to set

    # Its work

    def begin(self, work: Callable[[], None]) -> None:
        """Do `work` on the view's thread. ParameterError where it is closed or at work already."""
        with self._mutex:
            if self.closed:
                raise ParameterError(f"this {self.what} is closed; make another")
            if self.running:
                raise ParameterError(f"this {self.what} is at work already; stop it first")
            self.error, self.running = "", True
            self._halt.clear()
            self._thread = threading.Thread(target=self._work, args=(work,), name=f"labkit-{self.what}", daemon=True)
            self._thread.start()

    def _work(self, work: Callable[[], None]) -> None:
        try:
            self.changed(now=True)
            work()
        except BaseException as error:  # a thread has nobody to raise to
            self.error = one_line(error)
        self.running = False
        with contextlib.suppress(Exception):  # a kernel that goes away takes its pages with it
            self.changed(now=True)

    def attempt(self, action: Callable[[], Any]) -> None:
        """Do what a click asks for; what goes wrong is shown in the view."""
        try:
            action()
        except Exception as error:
            self.error = one_line(error)
            self.changed(now=True)

    def changed(self, now: bool = False) -> None:
        """Tell followers and the page; the page at once, or when it was not told a moment ago."""
        for follower in list(self.followers):
            follower(self)
        face = self._face
        if face is not None:
            face.follow(now)

    def stop(self) -> None:
        """Ask the work to end; it does so within a moment."""
        self._halt.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the work has ended, at most `timeout_s`; whether it has. An interrupt stops it first."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        try:
            thread.join(timeout_s)
        except KeyboardInterrupt:
            self.stop()
            thread.join(10)
            raise
        return not thread.is_alive()

    def close(self) -> None:
        """Stop, and leave the picture alone in the notebook. Closing twice is fine."""
        if self.closed:
            return
        self.stop()
        self.wait(10)
        self.closed = True
        face, self._face = self._face, None
        if face is not None:
            face.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # How it shows itself

    def picture(self) -> Html:
        """`html`, below it the error where there is one."""
        return Html(self.html() + (paragraph(mark("failed"), self.error) if self.error else ""))

    def page(self, title: str = "") -> str:
        """A whole page of the picture, which needs no network."""
        from labkit.widgets.still import page

        return page(title or self.what, self.picture(), self.figure() if self.plots else None)

    def __repr__(self) -> str:
        return f"<{self.what}: {'at work' if self.running else self.error or 'at rest'}>"

    def _repr_html_(self) -> str:
        return self.picture()

    def _ipython_display_(self) -> None:
        """In a notebook, controls and a picture that follows; shown again, it moves there. Elsewhere the words alone."""
        if not (in_notebook() and self.live) or self.closed:
            from IPython.display import display

            from labkit.widgets.still import figure_bundle

            display({"text/plain": repr(self), "text/html": self.picture()}, raw=True)
            if self.plots and (figure := self.figure()) is not None:
                display(figure_bundle(figure), raw=True)
            return
        from labkit.widgets.face import Face

        old, self._face = self._face, None
        if old is not None:
            old.close()
        self._face = Face(self)
        self.follow_controls()


def one_line(error: BaseException) -> str:
    """An error as a person reads it."""
    text = " ".join(str(error).split())
    return text if isinstance(error, LabError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
