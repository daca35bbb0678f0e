"""The picture of each experiment in `figures/`: which are missing or old, and drawing those where a Chrome is found."""

from collections.abc import Sequence
from pathlib import Path

from labkit.lab.publish.read import RunView


def lacking(root: Path, runs: Sequence[RunView]) -> dict[str, Path]:
    """The experiments whose picture is missing, or shows the figure of an older run of theirs; each with the stored figure
    it should show: that of its newest finished run, a look only where there is nothing better (`runs` newest first). A
    picture that does not say what it shows stays."""
    from labkit.lab.png import figure_mark, figure_shown

    figures: dict[str, list[tuple[bool, Path]]] = {}
    for run in runs:
        if run.finished and "figure.json" in run.files:
            look = run.verdict is not None and run.verdict.strength == "look"
            figures.setdefault(run.record.experiment, []).append((look, run.folder / "figure.json"))
    found: dict[str, Path] = {}
    for experiment, known in figures.items():
        newest = next((path for look, path in known if not look), known[0][1])
        picture = picture_of(root, experiment)
        shown = figure_shown(picture)
        older = shown not in ("", figure_mark(newest)) and shown in {figure_mark(path) for _, path in known}
        if older or not picture.is_file():
            found[experiment] = newest
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
