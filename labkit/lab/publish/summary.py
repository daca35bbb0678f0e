"""What a run says of itself in a line: its verdict and result, its rule and belief, how it ended."""

from dataclasses import dataclass

from labkit.lab.publish.read import RunView

SIGNS = {"confirmed": "✓", "refuted": "✗", "inconclusive": "?", "invalid": "–"}
ENDINGS = {
    "running": ("Not finished.", "No end was recorded: the run is still going, or was cut off without a word."),
    "failed": ("A cell of this run failed.", ""),
    "crashed": ("The kernel of this run died.", ""),
    "killed": ("This run was killed.", ""),
    "timed-out": ("This run ran out of time.", ""),
    "stopped-early": ("This run was stopped early.", ""),
}


@dataclass(frozen=True)
class Badge:
    """A verdict (or a run's state) as a mark: its word, its sign and what stands beside it; `kind` is its style."""

    word: str
    sign: str
    kind: str
    detail: str = ""


def badge(run: RunView) -> Badge:
    """What a run came to: its verdict, else how it ended."""
    if run.verdict is not None:
        words = [run.verdict.strength] + (["exploratory"] if run.record.exploratory else [])
        words += ["planned after its data"] if run.record.retrospective else []
        return Badge(run.verdict.outcome, SIGNS[run.verdict.outcome], run.verdict.outcome, " · ".join(words))
    if not run.finished:
        return Badge(run.record.state.replace("-", " "), "!", "broken")
    return Badge("no verdict", "·", "", "" if run.plan else "exploratory: no plan was declared")


def result_text(run: RunView) -> str:
    """The number of a verdict with its interval, `5.83× [5.70, 5.96]`; empty without one."""
    return run.verdict.number() if run.verdict is not None else ""


def ending(run: RunView) -> dict[str, str] | None:
    """The banner of a run that did not come to its end; None for one that did."""
    if run.finished:
        return None
    title, text = ENDINGS.get(run.record.state, (f"This run ended as {run.record.state}.", ""))
    done, total = run.progress.get("done"), run.progress.get("total")
    words = [run.record.reason or text, f"It had done {done} of {total}." if done is not None and total else ""]
    words.append(
        "What follows is what had been stored by then." if run.rows or run.notebook else "Nothing was measured."
    )
    sentences = (word if word[-1:] in ".!?" else f"{word}." for word in words if word)
    return {"title": title, "text": " ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences)}


def plan_facts(run: RunView) -> list[tuple[str, str]]:
    """What was believed and decided beforehand, and why the verdict is what it is, line by line."""
    facts = run.plan.facts() if run.plan is not None else {}
    lines: list[tuple[str, str]] = [
        (name, facts[name]) for name in ("belief", "because", "rule", "refuted if", "cells", "kind") if name in facts
    ]
    if run.verdict is not None:
        lines.append(("verdict because", run.verdict.reason))
        lines += [("note", notice) for notice in run.verdict.notices]
    lines += [("plan", text) for text in (planned(run),) if text]
    return [(name[:1].upper() + name[1:], text) for name, text in lines]


def planned(run: RunView) -> str | None:
    """Whether the plan came before the data, with the start of its hash."""
    if not run.record.plan_hash:
        return None
    when = "after its data (retrospective)" if run.record.retrospective else "before the first measurement"
    return f"stored {when}, hash {run.record.plan_hash[:12]}"


def when_text(utc: str) -> str:
    """`2026-12-01T00:16:26Z` as `2026-12-01 00:16 UTC`; what is not a time stays as it is."""
    return f"{utc[:10]} {utc[11:16]} UTC" if len(utc) == 20 and utc.endswith("Z") else utc


@dataclass(frozen=True)
class AuditLine:
    """One root cause of an audit: its outcome as a mark, what was seen with its arithmetic, and what follows from it."""

    mark: Badge
    detector: str
    text: str
    arithmetic: tuple[str, ...]
    follows: tuple[str, ...]


AUDIT_MARKS = {
    "fail": Badge("fail", "✗", "refuted"), "warn": Badge("warn", "!", "inconclusive"), "ok": Badge("ok", "✓", "confirmed"),
    "not assessable": Badge("not assessable", "·", ""),
}  # fmt: skip


def audit_lines(run: RunView) -> tuple[list[AuditLine], list[tuple[Badge, list[str]]]]:
    """The troubles of a run's audit, root causes first, then what could not be judged and what is well, counted."""
    from labkit.audit.report import counted

    if run.audit is None:
        return [], []
    troubles = [
        AuditLine(
            AUDIT_MARKS[group.outcome], group.root.detector, group.root.text, group.root.arithmetic,
            tuple(f"{one.detector}: {one.text}" for one in group.consequences),
        )
        for group in run.audit.groups()
    ]  # fmt: skip
    rest = [(AUDIT_MARKS[name], counted(run.audit.notices, name)) for name in ("not assessable", "ok")]
    return troubles, [(mark, lines) for mark, lines in rest if lines]
