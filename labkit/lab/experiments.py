"""The experiments of a lab: its notebooks, found by name, with their question and their parameters."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import ParameterError, RunError
from labkit.lab.lab import EXPERIMENT_NAME
from labkit.lab.notebook_format import load_nbformat
from labkit.lab.parameters import Parameter, read_parameters

TAG = "parameters"
SKIP_TAG = "skip-execution"


@dataclass(frozen=True)
class Experiment:
    """A notebook that can be run: its name, file, question (its first heading) and parameters."""

    name: str
    path: Path
    question: str
    parameters: dict[str, Parameter]
    document: Any  # the notebook, an nbformat NotebookNode

    def code_sha256(self) -> str:
        """A hash of the code cells alone, so prose and stored outputs do not count as another experiment."""
        digest = hashlib.sha256()
        for cell in self.document.cells:
            if cell.cell_type == "code":
                digest.update(cell.source.encode() + b"\0")
        return digest.hexdigest()

    def defaults(self) -> dict[str, Any]:
        """Every parameter's default, by name."""
        return {name: parameter.default for name, parameter in self.parameters.items()}


def find_experiment(root: Path, name: str) -> Experiment:
    """The experiment `name` (`batch-decode` or `batch_decode`, in `notebooks/`), or a path to a notebook.

    RunError when there is none, with those there are; ParameterError when its parameters cell is not in order."""
    return load_experiment(find_notebook(root, name))


def find_notebook(root: Path, name: str) -> Path:
    """The notebook of the experiment `name`, or the path to one that `name` is, unread. RunError when there is none."""
    folder = root / "notebooks"
    if name.endswith(".ipynb") or os.sep in name:
        path = Path(name).expanduser().resolve()
        if not path.is_file():
            raise RunError(f"there is no notebook {name}")
        return path
    wanted = notebook_name(Path(f"{name}.ipynb"))
    for path in sorted(folder.glob("*.ipynb")):
        if notebook_name(path) == wanted:
            return path
    known = ", ".join(notebook_name(path) for path in sorted(folder.glob("*.ipynb"))) or "none"
    raise RunError(f"there is no experiment {name!r} in {folder}; there are: {known}")


def list_experiments(root: Path) -> list[Experiment | RunError | ParameterError]:
    """Every notebook of the lab by name, in order; a notebook that cannot be run stands as the error that says why."""
    found: list[Experiment | RunError | ParameterError] = []
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        try:
            found.append(load_experiment(path))
        except (RunError, ParameterError) as error:
            found.append(error)
    return found


def notebook_name(path: Path) -> str:
    """The experiment's name a notebook's file stands for: `batch_decode.ipynb` is `batch-decode`, and so is
    `07_batch_decode.ipynb`, whose number only sorts it."""
    name = path.stem.lower().replace("_", "-")
    return re.sub(r"^[0-9]+-(?=[a-z])", "", name)


def load_experiment(path: Path) -> Experiment:
    """Reads and checks a notebook: valid, exactly one cell tagged `parameters`, holding literals only."""
    nbformat = load_nbformat()
    name = notebook_name(path)
    if not EXPERIMENT_NAME.fullmatch(name):
        raise RunError(f"{path.name} does not name an experiment; use letters, digits, - and _, as batch_decode.ipynb")
    try:
        document = nbformat.read(path, as_version=4)
        nbformat.validate(document)
    except (OSError, ValueError, nbformat.ValidationError, nbformat.reader.NotJSONError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise RunError(f"{path} is not a notebook that can be read: {reason}") from None
    tagged = [cell for cell in document.cells if TAG in cell.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0].cell_type != "code":
        raise ParameterError(
            f"{path.name} must have exactly one code cell tagged `{TAG}`, it has {len(tagged)}; "
            f"tag the cell that sets the defaults"
        )
    parameters = read_parameters(tagged[0].source, where=f"the parameters cell of {path.name}")
    return Experiment(name, path, question_of(document), parameters, document)


def question_of(document: Any) -> str:
    """What the notebook asks: `metadata.lab.question`, else its first heading."""
    stated = document.metadata.get("lab", {}).get("question")
    if stated:
        return str(stated)
    for cell in document.cells:
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if line.startswith("#"):
                    return str(line.lstrip("# ").strip())
    return ""
