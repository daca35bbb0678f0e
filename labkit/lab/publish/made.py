"""Making the page of one run: its entry recomputed, its files read and redacted, its page and what stands beside written."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit.lab.coverage import Coverage
from labkit.lab.events import EntryEvent
from labkit.lab.publish.comparison import points_of
from labkit.lab.publish.pages import Menu, run_page, site_resolver
from labkit.lab.publish.read import read_run
from labkit.lab.publish.site import put
from labkit.lab.publish.standing import Claims
from labkit.lab.recheck import Fault, recheck
from labkit.lab.redact import Scrubber

TOP = "../../"  # from a run's page to the root of the site


@dataclass(frozen=True)
class Site:
    """What all pages of runs share: the lab, the folder the site is made in, the menu, and what links can lead to (files
    of the root → their place in the site; run ids → their published files)."""

    root: Path
    aside: Path
    menu: Menu
    root_files: Mapping[str, str]
    runs: Mapping[str, frozenset[str]]

    def resolver(self, top: str) -> Any:
        """Finds links from a page whose way to the site's root is `top`."""
        return site_resolver(self.root_files, self.runs, top)


@dataclass(frozen=True)
class Task:
    """A run whose page is to be made: its folder, its entries with what was kept of their coverage apart from them, what
    its sweeps say that its data do not, and what the ledger lets it claim."""

    id: str
    folder: Path
    entries: tuple[tuple[EntryEvent, Coverage | None], ...] = ()
    sweeps: tuple[str, ...] = ()
    claims: Claims | None = None
    waived: tuple[str, ...] = ()
    compare: str = ""  # where its experiment is compared, from the site's root

    def facts(self) -> list[Any]:
        """What its page depends on beside the files of the run, as JSON has it."""
        entries = [(event.model_dump_json(), known and known.model_dump_json()) for event, known in self.entries]
        return [entries, self.sweeps, self.claims and asdict(self.claims), self.waived, self.compare]


@dataclass(frozen=True)
class Made:
    """A page as it was made: the files in its folder with their SHA-256, the links it asked for with where they led, what
    its entries say that the data do not, its figures, what was not right, and what was masked (file, kind, times)."""

    files: Mapping[str, str]
    asked: Mapping[str, str | None]
    faults: Sequence[Sequence[str]]
    figures: int
    problems: Sequence[str]
    masked: Sequence[tuple[str, str, int]]
    key: str = ""
    code: str = ""
    points: Mapping[str, Any] = field(default_factory=dict)  # what its rule judges, for the comparison


def as_faults(kept: Sequence[Sequence[str]]) -> list[Fault]:
    """Faults from their fields."""
    return [Fault(*fault) for fault in kept]  # type: ignore[arg-type]


def make_page(site: Site, task: Task) -> Made:
    """Writes a run's page and its files into the site's folder. RunError when the run cannot be read."""
    faults = [fault for event, coverage in task.entries for fault in recheck(site.root, event, coverage)]
    scrubber = Scrubber()
    run = read_run(task.folder, scrubber)
    plain = Scrubber()  # the ledger's own count has these
    disagrees = [plain.text(fault.text) for fault in faults if fault.kind != "missing"] + list(task.sweeps)
    asked: dict[str, str | None] = {}
    find = site.resolver(TOP)

    def resolve(url: str) -> str | None:
        asked[url] = find(url)
        return asked[url]

    text, beside = run_page(run, task.claims, disagrees, site.menu, resolve, task.waived, task.compare)
    files = {**run.files, **beside.files, "index.html": text.encode()}
    for name, content in files.items():
        put(site.aside / "runs" / run.id / name, content)
    return Made(
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        asked=asked,
        faults=[list(fault) for fault in faults],
        figures=beside.figures,
        problems=[f"{run.id}: {text}" for text in beside.problems],
        points=points_of(run),
        masked=[(hit.file, hit.kind, hit.times) for hit in scrubber.found()],
    )
