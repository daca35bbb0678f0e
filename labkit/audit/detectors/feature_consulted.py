"""A feature said to be on that was never consulted: a drafter that drafted nothing, a cache that nobody asked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.audit.evidence import Evidence, Observation
from labkit.audit.notice import Notice
from labkit.audit.physics import number
from labkit.audit.registry import detector

OFF = {"", "none", "off", "no", "false", "0", "disabled", "null"}


@dataclass(frozen=True)
class Feature:
    """Something that can be on: the settings that say so, the counters that move when it is consulted, and those that
    move when that had an effect. A counter is a column of the requests or a metric."""

    name: str
    settings: tuple[str, ...]
    consulted: tuple[str, ...]
    worked: tuple[str, ...]
    not_in: tuple[str, ...] = ("operation",)  # phases in which nobody asks for it


FEATURES = (
    Feature(
        "speculation", ("draft", "drafts", "k", "speculation", "spec_type", "drafter", "mtp", "ngram"),
        ("drafted_tokens", "drafted", "draft_tokens", "draft_n", "server.draft_n", "acceptance"),
        (
            "accepted_tokens", "accepted", "draft_n_accepted", "server.draft_n_accepted", "accepted_per_step",
            "acceptance",
        ),
        ("operation", "prefill"),
    ),
    Feature(
        "the prefix cache", ("prefix_cache", "prefix_caching", "cache_prompt", "prompt_cache"),
        ("cache_lookups", "cache_queries", "prefix_queries"),
        ("cached_tokens", "server.cache_n", "usage.prompt_tokens_details.cached_tokens"),
    ),
)  # fmt: skip


@detector("feature-consulted", 3, version=1, title="Features that were consulted", explains=("lever-witness",))
def feature_consulted(evidence: Evidence) -> Iterator[Notice]:
    """The live counter of every feature that a cell says is on. One that stayed at nothing fails: the feature was off,
    whatever the label says. One that moved without effect (drafts, none of them accepted) only forbids claiming one."""
    parameters = evidence.record.parameters if evidence.record is not None else {}
    alike: dict[Any, list[Observation]] = {}  # published rows give one metric each
    for one in evidence.observations:
        alike.setdefault(sort_of(one, evidence), []).append(one)
    for feature in FEATURES:
        found: list[Notice] = []
        for one in evidence.observations:
            said = on(feature, {**parameters, **one.settings, **one.knobs})
            if said and one.phase not in feature.not_in:
                found.append(judge(feature, said, one, alike[sort_of(one, evidence)]))
        yield from (notice for notice in found if notice.outcome != "fail")
        yield from together_as_one([notice for notice in found if notice.outcome == "fail"])


def together_as_one(failed: list[Notice]) -> Iterator[Notice]:
    """The fails on one feature as one notice, for they have one cause."""
    for first in failed[:1]:
        more = f", nor at {len(failed) - 1} more cells" if len(failed) > 1 else ""
        lines = tuple(dict.fromkeys(line for notice in failed for line in notice.arithmetic))
        about = tuple(dict.fromkeys(subject for notice in failed for subject in notice.about))
        yield first.model_copy(update={"text": first.text + more, "arithmetic": lines, "about": about})


def on(feature: Feature, settings: Mapping[str, Any]) -> str:
    """The setting that says a feature is on, in words; nothing where none does, or one says it is off."""
    given = {name: settings[name] for name in feature.settings if settings.get(name) is not None}
    given = {name: value for name, value in given.items() if not isinstance(value, list | tuple | dict)}
    if not given or any(str(value).strip().lower() in OFF for value in given.values()):
        return ""
    return ", ".join(f"{name}={value}" for name, value in given.items())


def sort_of(one: Observation, evidence: Evidence) -> Any:
    """What those that were observed under the same conditions have in common; a run's cells stand alone."""
    return one.subject if evidence.kind == "run" else (one.group, one.likeness("phase"))


def judge(feature: Feature, said: str, one: Observation, together: list[Observation]) -> Notice:
    """The notice on one feature of one cell."""
    about = (one.subject,)
    consulted, worked = counted(feature.consulted, together), counted(feature.worked, together)
    known = consulted if consulted is not None else worked
    if known is None:
        text = f"{one.subject} says {said}, and no counter tells whether {feature.name} was consulted"
        missing = (f"a counter of {feature.name}, such as {feature.consulted[0]}",)
        return Notice(outcome="not assessable", text=text, subject=one.subject, about=about, missing=missing)
    name, value = known
    lines = (f"{said}; {name}: {number(value)} in all",)
    if value > 0 and (worked is None or worked[1] > 0):
        text = f"{one.subject}: {feature.name} was consulted ({name} {number(value)})"
        return Notice(outcome="ok", text=text, subject=one.subject, about=about, arithmetic=lines)
    if value > 0 or name not in feature.consulted or name in feature.worked:
        text = f"{one.subject}: {feature.name} was on and came to nothing: no effect of it should be claimed"
        return Notice(outcome="ok", text=text, subject=one.subject, about=about, arithmetic=lines)
    text = f"{one.subject} says {said}, and {feature.name} was off: it was never consulted"
    return Notice(outcome="fail", text=text, subject=one.subject, about=about, arithmetic=lines)


def counted(names: tuple[str, ...], together: list[Observation]) -> tuple[str, float] | None:
    """(counter, its sum) of the first that the requests, or the metrics, tell of; None where none does."""
    for name in names:
        values = [value for one in together for asked in one.requests if (value := asked.number(name)) is not None]
        values += [sample.value for one in together for sample in one.samples.get(name, ())]
        values += [one.metrics[name] for one in together if name in one.metrics and name not in one.samples]
        if values:
            return name, float(sum(values))
    return None
