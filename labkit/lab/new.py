"""A new experiment: the template's notebook under a name of its own, with its plan, measurement and conclusion to change."""

import json
import os
import secrets
from importlib.resources import files
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.lab.experiments import notebook_name
from labkit.lab.lab import experiment_name

TEMPLATE = "template"
MOST_NAME = 80  # characters
INTRODUCTION = """\
A copy of the template, which measures what its heading asks until you change it: on random weights in the shape of a tiny
model, so that it runs anywhere. Ask your own question in this heading and in the notebook's metadata (`lab.question`), set
`model` to a model of yours, and change the plan, the check and what is measured.

The next cell holds the parameters, literals only: `lab run {name} -p streams 8` changes one for a run."""


def make_experiment(root: Path, name: str, question: str = "") -> Path:
    """Makes `notebooks/<name>.ipynb` in the lab at `root` from the template, and returns its path.

    `question` takes the place of the template's. ParameterError for a name that no experiment may have, or a question
    that asks nothing; RunError where there is a notebook of that name, which stays as it is."""
    experiment = experiment_name(name)
    if len(experiment) > MOST_NAME:
        raise ParameterError(f"{experiment[:20]}... has {len(experiment)} characters; use at most {MOST_NAME}")
    question = " ".join(question.split())
    if question and not question.endswith("?"):
        raise ParameterError(f"{question!r} is not a question; end it with a question mark")
    folder = root / "notebooks"
    held = next((path for path in sorted(folder.glob("*.ipynb")) if notebook_name(path) == experiment), None)
    if held is not None:
        raise RunError(f"notebooks/{held.name} is there already; choose another name, or remove it first")
    path = folder / f"{experiment.replace('-', '_')}.ipynb"
    try:
        folder.mkdir(exist_ok=True)
        put_new(path, json.dumps(named(read_template(), experiment, question), indent=1, ensure_ascii=False) + "\n")
    except FileExistsError:
        raise RunError(f"notebooks/{path.name} is there already; choose another name, or remove it first") from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    return path


def read_template() -> dict[str, Any]:
    """The template's notebook as JSON."""
    found: dict[str, Any] = json.loads((files("labkit.lab") / "starter" / "template.ipynb").read_text(encoding="utf-8"))
    return found


def named(notebook: dict[str, Any], experiment: str, question: str) -> dict[str, Any]:
    """The template as a notebook of `experiment`: its name in the run and in the plan, its first words its own."""
    question = question or notebook["metadata"]["lab"]["question"]
    notebook["metadata"]["lab"]["question"] = question
    for cell in notebook["cells"]:
        if cell["id"] == "question":
            text = f"# {question}\n\n{INTRODUCTION.format(name=experiment)}"
            cell["source"] = text.splitlines(keepends=True)
        elif cell["cell_type"] == "code":
            cell["source"] = [line.replace(f'"{TEMPLATE}"', f'"{experiment}"') for line in cell["source"]]
    return notebook


def put_new(path: Path, content: str) -> None:
    """Writes a file whole or not at all. FileExistsError when there is one."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        aside.write_text(content, encoding="utf-8")
        try:
            os.link(aside, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if path.exists():
                raise FileExistsError(path) from None
            aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
