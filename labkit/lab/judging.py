"""Applies a run's plan to its samples, for the notebook and for the record."""

from pathlib import Path
from typing import Any


def judge_run(folder: Path) -> Any:
    """The verdict on the run in `folder`, or None when it has no plan."""
    if not (folder / "plan.json").exists():
        return None
    from labkit.lab.verdict import judge_folder

    return judge_folder(folder)


def judged_fields(folder: Path) -> dict[str, Any]:
    """Audits the run, which keeps the result in its folder, and judges it: the record's `verdict` field as it is stored;
    empty when there is no plan to judge by."""
    from labkit.audit.stored import run_audit

    run_audit(folder)
    verdict = judge_run(folder)
    return {} if verdict is None else {"verdict": verdict.model_dump(mode="json")}
