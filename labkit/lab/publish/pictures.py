"""The picture of each experiment in `figures/`: which are missing, and drawing those where a Chrome is found."""

from collections.abc import Sequence
from pathlib import Path

from labkit.lab.publish.read import RunView


def lacking(root: Path, runs: Sequence[RunView]) -> dict[str, Path]:
    """The experiments without a picture, each with the stored figure of its newest finished run (`runs` newest first)."""
    found: dict[str, Path] = {}
    for run in runs:
        figure = run.folder / "figure.json"
        if run.finished and "figure.json" in run.files and not picture_of(root, run.record.experiment).is_file():
            found.setdefault(run.record.experiment, figure)
    return found


def draw_lacking(root: Path, runs: Sequence[RunView]) -> list[str]:
    """Draws what is lacking; a line for each that could not be drawn, and for all of them where there is no Chrome."""
    from labkit.errors import LabError
    from labkit.lab.png import find_browser, write_png

    wanted = lacking(root, runs)
    if wanted and find_browser() is None:
        return [f"no picture of {', '.join(wanted)} was drawn: that needs Chrome or Chromium, and none was found"]
    trouble = []
    for experiment, figure in wanted.items():
        try:
            if not write_png(figure, picture_of(root, experiment)):
                trouble.append(f"no picture of {experiment} was drawn: the Chrome that was found could not draw it")
        except LabError as error:
            trouble.append(f"no picture of {experiment} was drawn: {str(error).replace(f'{root}/', '')}")
    return trouble


def picture_of(root: Path, experiment: str) -> Path:
    """Where the picture of an experiment is."""
    return root / "figures" / f"{experiment}.png"
