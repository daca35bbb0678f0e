"""The pages of the site as HTML text: a run, a comparison, a ledger. Same data in, same bytes out."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from labkit.lab.publish.comparison import judged
from labkit.lab.publish.markdown import Resolve, highlight, render
from labkit.lab.publish.notebook import notebook_html, text_html
from labkit.lab.publish.numbers import cell_table, main_number
from labkit.lab.publish.plots import Beside, figure_html
from labkit.lab.publish.read import RunView
from labkit.lab.publish.standing import Claims
from labkit.lab.publish.summary import SIGNS, audit_lines, badge, ending, plan_facts, result_text, when_text
from labkit.lab.render import ENDINGS

if TYPE_CHECKING:
    from jinja2 import Environment

# An entry's heading as the ledger renders it: `2026-12-01 · Confirmed: the belief`, struck through or not.
HEADLINE = re.compile(
    r"(?P<open><h2 id=\"[^\"]*\">)\s*(?P<struck><del>)?(?P<day>\d{4}-\d\d-\d\d) · (?:(?P<ending>[A-Z][a-z ]+): )?"
)
ENTRY = re.compile(r'<h[1-6] id="(?P<id>[^"]*)">.*?</h[1-6]>', re.DOTALL)
EFFECT = re.compile(r"(?<![\w.])-?[\d.]+×? \[-?[\d.]+, -?[\d.]+\]")  # a number with its interval: kept on one line
MOST_BESIDE = 300_000  # bytes of samples and strips by which a page has less room for its notebook's outputs
SORTABLE = "levers.html"  # its tables can be sorted
LIMITS = ("max_", "subgroup_", "timestamp_", "features")  # facts of a device that are folded away
OUTCOMES = {words: outcome for outcome, words in ENDINGS.items()}
LEDGERS = (
    ("Findings", "FINDINGS.md", "findings.html"),
    ("Mistakes", "MISTAKES.md", "mistakes.html"),
    ("Open problems", "OPEN-PROBLEMS.md", "open-problems.html"),
    ("Levers", "LEVERS.md", "levers.html"),
    ("Methodology", "METHODOLOGY.md", "methodology.html"),
)


@dataclass(frozen=True)
class Menu:
    """The links at the top of every page: (name, address from the site's root)."""

    entries: tuple[tuple[str, str], ...]


@cache
def templates() -> "Environment":
    """The templates of the package; every value in them is escaped unless it is HTML we made."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("labkit.lab.publish"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["python"] = lambda code: Markup(highlight(code, "python"))
    return environment


def run_page(
    run: RunView,
    claims: Claims | None,
    disagrees: Sequence[str],
    menu: Menu,
    resolve: Resolve,
    waived: Sequence[str] = (),
    compare: str = "",
) -> tuple[str, Beside]:
    """A run's page, and what must stand beside it. `claims` are those the ledger let it make, None for a run not in it;
    `disagrees` is what its entry in the ledger says that its data do not; `resolve` finds addresses from the page's own
    folder; `waived` are the faults a person set aside, each with why; `compare` is where its experiment is compared."""
    beside = Beside()
    figure = figure_html(run.figure, beside, "the run's main figure") if run.figure is not None else ""
    main = main_number(run.rows, run.plan.rule) if run.plan and run.plan.warmup == "counted" else None
    if main and run.plan and run.plan.design == "restarts" and run.verdict and main.n != run.verdict.pairs:
        main = None  # blocks of one start are one repetition, which measurements.csv alone does not tell
    has_notebook = run.notebook is not None
    cells = cell_table(run.rows, run.plan.rule.metric if run.plan else None)
    beside.used = min(MOST_BESIDE, (cells.size if cells else 0) + sum(map(len, run.strips)))
    notebook = notebook_html(run.notebook, beside, resolve) if has_notebook else "<p>No notebook was stored.</p>"
    checks = run.record.checks
    troubles, assessed = audit_lines(run)
    text = (
        templates()
        .get_template("run.html.j2")
        .render(
            title=f"{run.question} · {run.record.experiment}",
            top="../../",
            here="",
            menu=menu.entries,
            run=run,
            verdict=badge(run),
            result=result_text(run),
            when=when_text(run.record.started),
            ending=ending(run),
            faults=run.faults,
            disagrees=disagrees,
            facts=plan_facts(run),
            figure=Markup(figure),
            figures=beside.figures,
            checked=claims is not None,
            claims=claims
            or Claims(can=texts(run.conclusion.get("claims")), cannot=texts(run.conclusion.get("should_not_claim"))),
            cells=cells,
            main=main,
            main_code=Markup(highlight(main.code, "python")) if main else "",
            checks=checks,
            troubles=troubles,
            judged=assessed,
            waived=waived,
            telemetry=run.telemetry,
            compare=compare,
            tables=condition_tables(run),
            notebook=Markup(notebook),
            log_tail=Markup(text_html(run.log_tail, "plain")) if run.log_tail else "",
            files=file_lines(run),
        )
    )
    beside.problems[:0] = run.faults
    return text, beside


def condition_tables(run: RunView) -> list[tuple[str, list[tuple[str, str]], bool]]:
    """(title, lines, whether it stands open) of each table of conditions that has lines."""
    record = run.record
    code = {"notebook": record.notebook, "notebook_sha256": record.notebook_sha256}
    if record.git:
        code |= {
            "commit": record.git.commit,
            "changed files": {True: "yes", False: "no", None: "not seen"}[record.git.dirty],
        }
    times = {"started": record.started, "ended": record.ended, "state": record.state, "reason": record.reason}
    tables = [
        ("Parameters", record.parameters, True),
        *facts_of("Device", record.device or {}, True),
        *facts_of("Model", record.model or {}, False),
        ("Machine", record.host.known, False),
        ("Times", times, False),
        ("Code", code, False),
        ("Packages", record.packages, False),
        ("Programs (fingerprints)", record.program_fingerprints, False),
        ("Shaders (SHA-256)", record.shaders, False),
    ]
    return [(title, flat(lines), is_open) for title, lines, is_open in tables if flat(lines)]


def facts_of(title: str, facts: Mapping[str, Any], is_open: bool) -> list[tuple[str, Mapping[str, Any], bool]]:
    """A table of the plain facts, and a folded one for each group of facts inside: a device's many limits."""
    groups = {name: value for name, value in facts.items() if isinstance(value, Mapping)}
    limits = {name: value for name, value in facts.items() if name not in groups and name.startswith(LIMITS)}
    plain = {name: value for name, value in facts.items() if name not in groups and name not in limits}
    inner = {"limits": limits | dict(groups.pop("limits", {}))} | groups
    return [(title, plain, is_open), *((f"{title}: {name}", value, False) for name, value in inner.items())]


def flat(mapping: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested values as lines `outer.inner`; empty ones left out, lists as JSON."""
    lines = []
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            lines += flat(value, f"{before}{name}.")
        elif value not in (None, ""):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            lines.append((f"{before}{name}", text))
    return lines


def file_lines(run: RunView) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "size": size_text(len(content)),
            "sha256": hashlib.sha256(content).hexdigest(),
            "masked": name in run.masked,
        }
        for name, content in run.files.items()
    ]


def compare_page(
    experiment: str, runs: Sequence[RunView], points: Mapping[str, Mapping[str, Any]], menu: Menu
) -> tuple[str, Beside]:
    """The page of an experiment's judged runs (newest first) over devices and dates, and what must stand beside it."""
    beside = Beside()
    groups = [
        (one, Markup("".join(figure_html(picture, beside) for picture in one.pictures))) for one in judged(runs, points)
    ]
    text = (
        templates()
        .get_template("compare.html.j2")
        .render(
            title=f"{runs[0].question} · {experiment} compared",
            top="../../",
            here="",
            menu=menu.entries,
            experiment=experiment,
            question=runs[0].question,
            groups=groups,
            figures=beside.figures,
        )
    )
    return text, beside


def ledger_page(
    name: str,
    text: str,
    here: str,
    menu: Menu,
    resolve: Resolve,
    problems: Sequence[str] = (),
    disagrees: Mapping[str, Sequence[str]] | None = None,
    missing: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A ledger's markdown as a page; the outcome in an entry's heading becomes its badge. `problems` are those of the
    whole file; `disagrees` says of an entry's anchor what does not agree with its data, `missing` which
    of its runs are not in this lab; both are shown beneath its heading."""
    body = HEADLINE.sub(headline, render(text, resolve))
    body = EFFECT.sub(r'<span class="whole">\g<0></span>', body)
    sortable = here == SORTABLE
    if sortable:
        body = body.replace("<table>", '<table class="sortable">')
    marks = (("disagrees", disagrees or {}), ("missing", missing or {}))
    if disagrees or missing:
        body = ENTRY.sub(
            lambda match: match[0] + "".join(note_of(kind, found.get(match["id"], ())) for kind, found in marks), body
        )
    return (
        templates()
        .get_template("ledger.html.j2")
        .render(
            title=name, top="", here=here, menu=menu.entries, body=Markup(body), problems=problems, sortable=sortable
        )
    )


def note_of(kind: str, found: Sequence[str]) -> str:
    """The mark of an entry that `disagrees` with its data, or whose runs are `missing`, with each; or nothing."""
    macro = getattr(templates().get_template("badge.html.j2").module, kind)
    return str(macro(found)) if found else ""


def headline(match: re.Match[str]) -> str:
    """An entry's heading with its date and badge above its words."""
    outcome = OUTCOMES.get(match["ending"] or "")
    mark = ""
    if outcome:
        sign = f'<span aria-hidden="true">{SIGNS[outcome]}</span>'
        mark = f'<span class="badge {outcome}">{sign} {outcome}</span>'
    above = f'<span class="entry-line"><time datetime="{match["day"]}">{match["day"]}</time> {mark}</span>'
    return f"{match['open']}{above} {match['struck'] or ''}"


def site_resolver(
    root_files: Mapping[str, str], runs: Mapping[str, frozenset[str]], top: str
) -> Callable[[str], str | None]:
    """Finds a link's place in the site: ledgers (`root_files`: file → page or copied file), a run's folder or file.

    `runs` maps a run id to its published files; `top` is the way from the page to the site's root. A link to another
    site stays as it is; a link to what is not published leads nowhere (None)."""
    from labkit.lab.publish.markdown import unquoted
    from labkit.lab.publish.sanitise import is_local

    def resolve(url: str) -> str | None:
        if url.startswith(("#", "http://", "https://", "mailto:", "data:image/")):
            return url
        if not is_local(url):
            return None
        path, mark, fragment = unquoted(url).partition("#")
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        name = "/".join(parts)
        if name in root_files:
            return f"{top}{root_files[name]}{mark}{fragment}"
        if parts[:2] == ["data", "runs"] and len(parts) > 2 and parts[2] in runs:
            inside = "/".join(parts[3:])
            if not inside:
                return f"{top}runs/{parts[2]}/index.html{mark}{fragment}"
            return f"{top}runs/{parts[2]}/{inside}" if inside in runs[parts[2]] else None
        return None

    return resolve


def texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def size_text(size: int) -> str:
    return f"{size:,} B" if size < 1000 else f"{size / 1000:,.1f} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"
