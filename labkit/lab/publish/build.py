"""Publishing: reads the lab, renders every page, and swaps the site in; or only the page of one run that just ended."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from labkit.errors import LabError, LedgerError, RunError
from labkit.lab.coverage import Coverage
from labkit.lab.events import CoverageEvent, EntryEvent, Events, SweepEvent, read_events
from labkit.lab.folder import PARTIAL
from labkit.lab.ledger_files import ledger_content
from labkit.lab.publish.comparison import compare_address, compared
from labkit.lab.publish.docs import FOLDER, HOME, doc_places, docs_key, keep_docs, write_docs
from labkit.lab.publish.index import index_page
from labkit.lab.publish.made import TOP, Made, Site, Task, as_faults
from labkit.lab.publish.markdown import Resolve
from labkit.lab.publish.pages import LEDGERS, Menu, compare_page, ledger_page
from labkit.lab.publish.pictures import draw_lacking, lacking
from labkit.lab.publish.read import RunView, read_run, run_folders
from labkit.lab.publish.reveal import revealed
from labkit.lab.publish.site import check_target, link_files, put, site_lock, staged
from labkit.lab.publish.standing import MISSING, LedgerView, let_claim, read_ledger_view
from labkit.lab.publish.state import (
    State,
    code_key,
    folder_key,
    is_whole,
    key_of,
    read_state,
    shared_key,
    write_state,
)
from labkit.lab.publish.worker import make_pages
from labkit.lab.recheck import Fault, recheck_sweep
from labkit.lab.record import read_record
from labkit.lab.redact import Redaction, Scrubber

SITE = "site"


@dataclass(frozen=True)
class Report:
    """What a publish revealed: pages, files and bytes of the site, what was masked on the way, what was not right. Of its
    runs, the pages of `made` were made anew."""

    out: str
    pages: int
    runs: int
    made: int
    files: int
    bytes: int
    figures: int
    redactions: tuple[Redaction, ...]
    problems: tuple[str, ...]
    reveals: tuple[str, ...] = ()
    without_picture: tuple[str, ...] = ()  # experiments with a figure whose picture is missing or of an older run

    @property
    def secrets(self) -> tuple[Redaction, ...]:
        """The masked things that were secrets."""
        return tuple(hit for hit in self.redactions if hit.kind == "secret")

    def to_json(self) -> str:
        document = asdict(self) | {"redactions": [hit._asdict() for hit in self.redactions]}
        return json.dumps(document, indent=2, ensure_ascii=False)


@dataclass(frozen=True)
class Source:
    """The lab, read for publishing: runs (newest first, of each what the index shows), ledgers (page name, file, page
    address, text), pictures by the experiment they are of, and the events of the ledger."""

    root: Path
    runs: tuple[RunView, ...]
    ledgers: tuple[tuple[str, str, str, str], ...]
    pictures: dict[str, Path]
    events: Events
    problems: tuple[str, ...]

    def site(self, aside: Path) -> Site:
        """What the pages share when the site is made in `aside`."""
        places = doc_places(self.root)
        docs = (("Docs", HOME),) if places else ()
        menu = Menu((("Questions", "index.html"), *((name, page) for name, _, page, _ in self.ledgers), *docs))
        root_files = {file: page for _, file, page, _ in self.ledgers}
        root_files |= places | {f"figures/{path.name}": f"figures/{path.name}" for path in self.pictures.values()}
        return Site(self.root, aside, menu, root_files, {run.id: frozenset(run.files) for run in self.runs})


def publish(
    lab_root: Path,
    out: Path | None = None,
    strict: bool = False,
    jobs: int | None = None,
    pictures: bool = False,
    dry_run: bool = False,
) -> Report:
    """Publishes the whole lab at `lab_root` into `out` (default `site/` in it).

    Every entry of the ledger is verified on the way, and one that does not agree with its data is marked so. A page is
    made anew where its run, its entry, the code or its links changed since `out` was made (`state.py` says by what), in
    `jobs` processes. LabError when `out` is some other folder, or with `strict` when anything published held a secret (it
    is masked either way), does not agree, or is of a run that is not here; then nothing is written. `pictures` draws into
    `figures/` what experiments lack there, where a Chrome is found; `dry_run` makes it all, tells what it would reveal, and
    leaves `out` as it is."""
    root = lab_root.resolve()
    target = Path(out or root / SITE).absolute()
    check_target(target, root)
    with site_lock(target):
        return build(root, target, strict=strict, jobs=jobs, pictures=pictures, dry_run=dry_run)


def publish_run(lab_root: Path, run_folder: Path, out: Path | None = None) -> Path:
    """Publishes the page of one run, final or partial, into the site (made where there is none), and renews the index
    and the ledgers; other runs' pages stay unless their data changed. Returns the page. RunError when the folder holds no
    readable run."""
    root, folder = lab_root.resolve(), Path(run_folder).resolve()
    target = Path(out or root / SITE).absolute()
    check_target(target, root)
    with site_lock(target):
        run = read_record(folder).id
        build(root, target, only=run)
    return target / "runs" / run / "index.html"


def build(
    root: Path,
    target: Path,
    strict: bool = False,
    jobs: int | None = None,
    only: str = "",
    pictures: bool = False,
    dry_run: bool = False,
) -> Report:
    """Makes the site and swaps it in. `only` names a run whose page is made whatever is there; pages of others that were
    made by other code then stay as they are."""
    scrubber, state = Scrubber(), read_state(target)
    source = read_lab(root, scrubber, draw=pictures and not dry_run)
    with staged(target, keep=not dry_run) as aside:
        site = source.site(aside)
        shared = {"shared": shared_key(root), "menu": site.menu.entries}
        folders = {run.id: folder_key(run.folder) for run in source.runs}
        sweeps = check_sweeps(source, state, folders)
        known = {name: as_faults(faults) for name, (_, faults) in sweeps.items()}
        tasks = tasks_of(source, [fault for faults in known.values() for fault in faults])
        keys = {task.id: key_of({**shared, "folder": folders[task.id], "task": task.facts()}) for task in tasks}
        kept, stale = sort_out(site, tasks, keys, target, state, only)
        made = kept | make_pages(site, stale, jobs)
        made = {name: replace(one, key=keys[name], code=one.code or code_key()) for name, one in made.items()}
        known |= {name: as_faults(one.faults) for name, one in made.items()}
        ledger = read_ledger_view(root, scrubber, fresh=False, known=known)
        docs = key_of({"docs": docs_key(site), "code": code_key()})
        if only and docs == state.docs and (target / FOLDER).is_dir():
            keep_docs(target, aside)
            wrong = []
        else:
            wrong = write_docs(aside, site, scrubber)
        problems = [*source.problems, *missing_words(ledger), *ledger.problems, *wrong]
        figures = write_shared(site, source, ledger, problems, {name: one.points for name, one in made.items()})
        masked = Counter({hit[:2]: hit.times for hit in scrubber.found()})
        for one in made.values():
            masked.update({(file, kind): times for file, kind, times in one.masked})
        written = [path for path in sorted(aside.rglob("*")) if path.is_file()]
        report = Report(
            out=str(target),
            pages=sum(path.suffix == ".html" for path in written),
            runs=len(source.runs),
            made=len(stale),
            files=len(written),
            bytes=sum(path.stat().st_size for path in written),
            figures=figures + sum(one.figures for one in made.values()),
            redactions=tuple(Redaction(*what, times) for what, times in sorted(masked.items()) if times),
            problems=(*problems, *(text for run in source.runs for text in made[run.id].problems)),
            reveals=revealed(source.runs, written),
            without_picture=tuple(lacking(root, source.runs)),
        )
        if strict:
            refuse_secrets(report)
            refuse_disagreement(ledger)
    if not dry_run:
        write_state(target, State(made, sweeps, "" if wrong else docs))
    return report


def tasks_of(source: Source, sweeps: Sequence[Fault]) -> list[Task]:
    """The page of each run, newest first; `sweeps` is what the ledger's sweeps say that their samples do not."""
    plain = Scrubber()  # the ledger's own count has these
    several = compared(source.runs)
    claims, waived = let_claim(source.events, plain)
    covered = {event.run: event.coverage for event in source.events.of(CoverageEvent)}
    entries: dict[str, list[tuple[EntryEvent, Coverage | None]]] = {}
    for event in source.events.of(EntryEvent):
        entries.setdefault(event.run, []).append((event, event.coverage or covered.get(event.run)))
    wrong: dict[str, list[str]] = {}
    for fault in sweeps:
        wrong.setdefault(fault.where, []).append(plain.text(fault.text))
    return [
        Task(
            id=run.id,
            folder=run.folder,
            entries=tuple(entries.get(run.id, ())),
            sweeps=tuple(wrong.get(run.id, ())),
            claims=claims.get(run.id),
            waived=waived.get(run.id, ()),
            compare=compare_address(run.record.experiment) if run.record.experiment in several else "",
        )
        for run in source.runs
    ]


def sort_out(
    site: Site, tasks: Sequence[Task], keys: Mapping[str, str], target: Path, state: State, only: str
) -> tuple[dict[str, Made], list[Task]]:
    """(pages that stay as they were made, linked into their place; those to be made)."""
    resolve = site.resolver(TOP)
    kept, stale = {}, []
    for task in tasks:
        before, folder = state.runs.get(task.id), target / "runs" / task.id
        if before is not None and stays(before, keys[task.id], folder, resolve, task.id, only):
            link_files(folder, site.aside / "runs" / task.id, before.files)
            kept[task.id] = before
        else:
            stale.append(task)
    return kept, stale


def stays(before: Made, key: str, folder: Path, resolve: Resolve, run: str, only: str) -> bool:
    """Whether a page that was made is the one that would be made now. For the page of one run alone, the pages of the
    others may be of other code, and nobody looks whether someone changed them."""
    if run == only or before.key != key or any(resolve(url) != place for url, place in before.asked.items()):
        return False
    if only:
        return all((folder / name).is_file() for name in before.files)
    return before.code == code_key() and is_whole(folder, before)


def check_sweeps(source: Source, state: State, folders: Mapping[str, str]) -> dict[str, tuple[str, list[list[str]]]]:
    """Of each sweep's event by its name: what it was recomputed from, as a hash, and what its samples say otherwise."""
    found = {}
    for item in source.events.stored:
        if isinstance(item.event, SweepEvent):
            names = sorted({run for effect in item.event.effects for run in effect.runs})
            key = key_of({"code": code_key(), "runs": [(name, folders.get(name)) for name in names]})
            before = state.sweeps.get(item.name)
            if before is None or before[0] != key:
                before = (key, [list(fault) for fault in recheck_sweep(source.root, item.event)])
            found[item.name] = before
    return found


def read_lab(root: Path, scrubber: Scrubber, draw: bool = False) -> Source:
    """Reads what all pages share, redacted, and of each run what the index shows. A run folder that cannot be read
    becomes a problem, not an error. `draw` draws the pictures that experiments lack first."""
    runs, problems = [], []
    plain = Scrubber()  # what is masked in a run is counted where its page is made
    for folder in run_folders(root):
        try:
            runs.append(read_run(folder, plain, whole=False))
        except RunError as error:
            problems.append(f"{folder.name.removeprefix(PARTIAL)}: {str(error).replace(f'{folder}/', '')}")
    if draw:
        problems += draw_lacking(root, runs)
    ledgers = []
    for name, file, page in LEDGERS:
        path = root / file
        if not path.is_file():
            continue
        try:
            ledgers.append((name, file, page, scrubber.read(file, ledger_content(path))))
        except LedgerError as error:
            problems.append(str(error).replace(f"{root}/", ""))
    pictures = {path.stem: path for path in sorted((root / "figures").glob("*.png"))}
    return Source(root, tuple(runs), tuple(ledgers), pictures, read_events(root, fresh=True), tuple(problems))


def missing_words(ledger: LedgerView) -> list[str]:
    """A line for each run of the ledger that is not in the lab."""
    gone = sorted({run for runs_of in ledger.missing.values() for run in runs_of})
    return [f"{run}: its entry {MISSING}" for run in gone]


def refuse_secrets(report: Report) -> None:
    """LabError that names the files when a secret was found."""
    places = [f"{hit.file} ({hit.times})" for hit in report.secrets]
    if places:
        shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more files" if len(places) > 5 else "")
        raise LabError(
            f"secrets found in {shown}; nothing was published: remove them there, or publish without --strict"
        )


def refuse_disagreement(ledger: LedgerView) -> None:
    """LedgerError that names the entry when the ledger does not agree with its data, or cannot be recomputed here."""
    entry = next((standing for standing in ledger.standings if standing.disagrees), None)
    if entry is not None:
        raise LedgerError(
            f"the entry {entry.anchor} does not agree with its data: {entry.disagrees[0]}; nothing was published"
        )
    for standing in ledger.standings:
        if standing.missing:
            raise LedgerError(f"the entry {standing.anchor} {MISSING} ({standing.missing[0]}); nothing was published")
    if ledger.missing:
        raise LedgerError(f"the entry of {next(iter(ledger.missing))} {MISSING}; nothing was published")
    if ledger.problems:
        raise LedgerError(f"the ledger does not agree with its data: {ledger.problems[0]}; nothing was published")


def write_shared(
    site: Site, source: Source, ledger: LedgerView, problems: Sequence[str], points: Mapping[str, Mapping[str, Any]]
) -> int:
    """Writes the index, the ledgers, the comparisons (`points` are those of each run), the pictures they use, and the
    assets: one plotly.js for the whole site. Returns how many figures are on these pages."""
    aside, figures = site.aside, 0
    pictures = {name: f"figures/{path.name}" for name, path in source.pictures.items()}
    several = compared(source.runs)
    places = {experiment: compare_address(experiment) for experiment in several}
    index = index_page(title_of(source.root), source.runs, ledger.standings, site.menu, pictures, problems, places)
    put(aside / "index.html", index.encode())
    for experiment, runs in several.items():
        text, beside = compare_page(experiment, runs, points, site.menu)
        figures += beside.figures
        for name, content in {**beside.files, "index.html": text.encode()}.items():
            put((aside / places[experiment]).with_name(name), content)
    for name, file, page, text in source.ledgers:
        disagrees = ledger.disagrees
        body = ledger_page(
            name, text, page, site.menu, site.resolver(""), disagrees.get(file, ()), disagrees, ledger.missing
        )
        put(aside / page, body.encode())
    for path in source.pictures.values():
        put(aside / "figures" / path.name, path.read_bytes())
    for name, content in assets():
        put(aside / "assets" / name, content)
    return figures


def assets() -> Iterable[tuple[str, bytes]]:
    """The files every page shares."""
    own = files("labkit.lab.publish") / "assets"
    for name in ("site.css", "site.js", "tables.js"):
        yield name, (own / name).read_bytes()
    plotly = files("plotly") / "package_data" / "plotly.min.js"
    if not plotly.is_file():
        raise LabError("the installed plotly has no plotly.min.js; reinstall it: pip install --force-reinstall plotly")
    yield "plotly.min.js", plotly.read_bytes()


def title_of(root: Path) -> str:
    """The lab's name: the first heading of its README, else that of its folder."""
    readme = root / "README.md"
    if readme.is_file():
        for line in readme.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("# "):
                return line[2:].strip()
    return root.name
