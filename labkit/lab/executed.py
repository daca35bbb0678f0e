"""The notebook as executed: the state of each cell, and the saved copy, redacted and swapped in whole."""

import time
from pathlib import Path
from typing import Any

from labkit.lab.experiments import SKIP_TAG
from labkit.lab.notebook_format import load_nbformat
from labkit.lab.record import Cells, utc_now, write_atomic
from labkit.lab.redact import Redactor

SAVE_EVERY_S = 2.0
SAVE_SHARE = 0.2  # of the time may go into saving


def runs_code(cell: Any) -> bool:
    """Whether the cell is one the kernel is asked to run."""
    return cell.cell_type == "code" and bool(cell.source.strip()) and SKIP_TAG not in cell.metadata.get("tags", [])


class ExecutedNotebook:
    """A notebook while it runs. States are ours (`metadata.lab.state`): not-run, running, executed, failed or
    interrupted; the executed ones are those the kernel numbered."""

    def __init__(self, document: Any, path: Path, redactor: Redactor) -> None:
        self.document = document
        self.path = path
        self.redactor = redactor
        self.stored: list[Any] = [None] * len(document.cells)
        self.changed = set(range(len(document.cells)))
        self.next_save = 0.0
        for cell in document.cells:
            cell.metadata.pop("papermill", None)
            if cell.cell_type == "code":
                cell.outputs = []
                cell.execution_count = None
                cell.metadata.pop("execution", None)
            if runs_code(cell):
                cell.metadata["lab"] = {"state": "not-run"}

    @property
    def code_cells(self) -> list[tuple[int, Any]]:
        """The cells that run, with their place in the notebook."""
        return [(index, cell) for index, cell in enumerate(self.document.cells) if runs_code(cell)]

    def start(self, index: int) -> None:
        """Marks a cell as running and saves."""
        self.document.cells[index].metadata["lab"] = {"state": "running", "started": utc_now()}
        self.touch(index)
        self.save()

    def end(self, index: int, state: str, seconds: float) -> None:
        """Marks how a cell ended and saves."""
        cell = self.document.cells[index]
        cell.metadata["lab"] = dict(cell.metadata["lab"]) | {"state": state, "seconds": round(seconds, 3)}
        self.touch(index)
        self.save()

    def touch(self, index: int | None) -> None:
        """Notes that a cell (or any of them) has changed."""
        self.changed |= {index} if index is not None else set(range(len(self.document.cells)))

    def save_when_due(self) -> None:
        """Saves new output of a running cell, now and then."""
        if self.changed and time.monotonic() >= self.next_save:
            self.save()

    def save(self) -> None:
        """Writes the notebook aside, redacted, and renames it into place."""
        nbformat = load_nbformat()
        start = time.monotonic()
        for index in self.changed:
            self.stored[index] = self.redactor.value(join_streams(self.document.cells[index]))
        self.changed = set()
        whole = nbformat.from_dict(
            {
                "cells": self.stored,
                "metadata": self.redactor.value(self.document.metadata),
                "nbformat": self.document.nbformat,
                "nbformat_minor": self.document.nbformat_minor,
            }
        )
        write_atomic(self.path, nbformat.writes(whole) + "\n")
        now = time.monotonic()
        self.next_save = now + max(SAVE_EVERY_S, (now - start) / SAVE_SHARE)

    def count(self) -> Cells:
        """What became of the code cells; a cell counts as executed only when the kernel gave it a number."""
        cells = [cell for _, cell in self.code_cells]
        executed = sum(
            cell.metadata["lab"]["state"] == "executed" and cell.execution_count is not None for cell in cells
        )
        failed = sum(cell.metadata["lab"]["state"] == "failed" for cell in cells)
        return Cells(total=len(cells), executed=executed, failed=failed, not_run=len(cells) - executed - failed)


def join_streams(cell: Any) -> Any:
    """The cell with neighbouring pieces of one stream joined, so no secret hides across a seam; kept as it is
    otherwise."""
    if cell.cell_type != "code":
        return cell
    outputs: list[Any] = []
    for output in cell.outputs:
        last = outputs[-1] if outputs else None
        if last is not None and output.output_type == last["output_type"] == "stream" and output.name == last["name"]:
            last["text"] += output.text
        else:
            outputs.append(dict(output))
    return dict(cell) | {"outputs": outputs}


def title_of(document: Any, index: int) -> str:
    """What to call a cell on the terminal: the heading right above it, else its first comment or line of code."""
    for cell in reversed(document.cells[:index]):
        if cell.cell_type != "markdown":
            break
        for line in cell.source.splitlines():
            if line.startswith("#"):
                return str(line.lstrip("# ").strip())
    for line in document.cells[index].source.splitlines():
        text = line.strip()
        if text and not text.startswith("%%"):
            return str(text.lstrip("# ").strip() or text)
    return "code"
