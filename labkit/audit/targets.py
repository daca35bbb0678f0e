"""What can be audited by name: a run, a file of claims, a published site, or every run of the lab."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.audit.claims import read_claims
from labkit.audit.report import Audit, audit
from labkit.audit.run_evidence import read_run
from labkit.audit.stored import run_audit, waived
from labkit.errors import LabError, ParameterError


@dataclass(frozen=True)
class Audited:
    """One thing that was audited, or why it could not be; `waived` are the failed detectors a person set aside."""

    name: str
    audit: Audit | None
    trouble: str = ""
    waived: dict[str, str] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether something fails that nobody waived."""
        return self.audit is not None and any(one not in self.waived for one in self.audit.failed)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        if self.audit is None:
            return {"name": self.name, "outcome": "not assessable", "reason": self.trouble}
        return self.audit.document() | {"name": self.name, "waived": self.waived}


def audit_target(target: str) -> Iterator[Audited]:
    """The audits of what `target` names; of every run of the lab when it is empty. ParameterError, or RunError, when
    there is no such thing."""
    path = Path(target)
    if not target:
        yield from audit_lab()
    elif path.suffix.lower() == ".csv":
        yield audit_claims(path)
    elif path.is_file():
        raise ParameterError(f"{path} is a file, and no .csv of claims; name a run, a .csv or a site's folder")
    elif path.is_dir() and is_site(path):
        yield from audit_site(path)
    elif path.is_dir() and (path / "run.json").is_file():
        yield audit_run(path)
    elif path.is_dir():
        raise ParameterError(f"{path} is neither a run (it has no run.json) nor a site that `lab publish` made")
    else:
        from labkit.lab.lab import Lab

        yield audit_run(Lab().find_run(target).folder)


def audit_claims(path: Path) -> Audited:
    """The audit of a file of claims, with the devices of the lab it is read in."""
    from labkit.lab.settle import shown

    found = audit(read_claims(path).evidence(lab_root()))
    return Audited(shown(path), found)


def audit_run(folder: Path) -> Audited:
    """The audit of a run's folder, kept in it where it lies in a lab."""
    from labkit.audit.stored import lab_of
    from labkit.lab.folder import PARTIAL

    root = lab_of(folder)
    found = run_audit(folder, store=root is not None and not folder.name.startswith(PARTIAL))
    return Audited(found.name, found, waived=waived(root, found.name, found.failed) if root else {})


def audit_lab() -> Iterator[Audited]:
    """The audits of all runs of the lab that were completed, newest first."""
    from labkit.lab.lab import Lab

    runs = Lab().runs(state="completed")
    for run in runs:
        try:
            yield audit_run(run.folder)
        except LabError as error:
            yield Audited(run.record.id, None, str(error))
    for line in runs.damaged:
        yield Audited("a damaged run", None, line)


def audit_site(site: Path) -> Iterator[Audited]:
    """The audits of the runs behind a site's pages, by the data it publishes with them."""
    for page in sorted((site / "runs").glob("*/index.html"), reverse=True):
        name = f"{site.name}/runs/{page.parent.name}"
        if not (page.parent / "run.json").is_file():
            yield Audited(name, None, "the page comes without its run's record")
            continue
        try:
            yield Audited(name, audit(read_run(page.parent, lab_root())))
        except LabError as error:
            yield Audited(name, None, str(error))


def is_site(path: Path) -> bool:
    """Whether a folder is a site that `lab publish` made, or a copy of one."""
    return (path / "index.html").is_file() and (path / "runs").is_dir()


def lab_root() -> Path | None:
    """The lab one is in, None where there is none: claims can be audited anywhere."""
    from labkit.lab.lab import Lab

    try:
        return Lab().root
    except LabError:
        return None
