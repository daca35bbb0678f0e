"""The front page: each question with what the ledger holds of it, and its runs, the newest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.lab.publish.markdown import slug
from labkit.lab.publish.pages import LEDGERS, Menu, templates
from labkit.lab.publish.read import RunView
from labkit.lab.publish.standing import Standing
from labkit.lab.publish.summary import Badge, badge, result_text, when_text

RUNS_SHOWN = 6  # of a question; older ones are folded


@dataclass(frozen=True)
class RunLine:
    """A run in the index."""

    address: str
    started: str
    when: str
    verdict: Badge
    result: str
    device: str
    model: str


@dataclass(frozen=True)
class Question:
    """A question in the index: its entries in the ledger with their addresses, and its runs, newest first.

    `verdict` and `result` are the newest run's, shown where the ledger has no entry."""

    question: str
    anchor: str
    belief: str
    address: str
    standings: tuple[tuple[Standing, str], ...]
    verdict: Badge
    result: str
    runs: tuple[RunLine, ...]
    picture: str = ""
    picture_words: str = ""
    compare: str = ""


def index_page(
    lab_name: str,
    runs: Sequence[RunView],
    standings: Sequence[Standing],
    menu: Menu,
    pictures: Mapping[str, str],
    problems: Sequence[str],
    compared: Mapping[str, str],
) -> str:
    """The front page: questions with what the ledger holds of them and their runs, the last run's question first.

    `pictures` maps an experiment to the address of its newest figure, `compared` to that of its comparison."""
    groups: dict[str, tuple[list[Standing], list[RunView]]] = {}
    for run in runs:
        groups.setdefault(run.question, ([], []))[1].append(run)
    for entry in standings:  # an entry whose runs are not here still has its place
        groups.setdefault(entry.question, ([], []))[0].append(entry)
    questions = [question(words, *group, pictures, compared) for words, group in groups.items()]
    return (
        templates()
        .get_template("index.html.j2")
        .render(
            title=lab_name,
            top="",
            here="index.html",
            menu=menu.entries,
            lab_name=lab_name,
            groups=questions,
            shown=RUNS_SHOWN,
            run_count=len(runs),
            newest=when_text(runs[0].record.started) if runs else "",
            problems=problems,
        )
    )


def question(
    words: str,
    standings: Sequence[Standing],
    runs: Sequence[RunView],
    pictures: Mapping[str, str],
    compared: Mapping[str, str],
) -> Question:
    """A question's entry in the index; without one in the ledger, its newest run with a verdict stands first."""
    asked = [run for run in runs if run.verdict is not None] or list(runs)
    pages = {file: page for _, file, page in LEDGERS}
    placed = tuple((entry, f"{pages[entry.ledger]}#{entry.anchor}") for entry in standings)
    plan = asked[0].plan if asked else None
    belief = placed[0][0].belief if placed else plan.belief if plan else ""
    picture = pictures.get(asked[0].record.experiment, "") if asked else ""
    return Question(
        question=words,
        anchor=slug(words),
        belief="" if belief == words else belief,
        address=f"runs/{asked[0].id}/index.html" if asked else placed[0][1],
        standings=placed,
        verdict=badge(asked[0]) if asked else placed[0][0].verdict,
        result=result_text(asked[0]) if asked else placed[0][0].result,
        runs=tuple(run_line(run) for run in runs),
        picture=picture,
        picture_words=words if picture else "",
        compare=compared.get(asked[0].record.experiment, "") if asked else "",
    )


def run_line(run: RunView) -> RunLine:
    return RunLine(
        address=f"runs/{run.id}/index.html",
        started=run.record.started,
        when=when_text(run.record.started),
        verdict=badge(run),
        result=result_text(run),
        device=run.device,
        model=run.model,
    )
