"""A run's HTML: what its record says of its state, its plan, its conditions and its checks."""

from typing import TYPE_CHECKING

from labkit.show.pieces import Html, escape, facts_table, mark, table

if TYPE_CHECKING:
    from labkit.lab.record import RunRecord


def run_html(record: "RunRecord", samples: int | None = None) -> Html:
    """The facts of a record, and a row a check; `samples` where they are counted already."""
    facts = {
        "state": Html(f"{mark(record.state)} {escape(record.reason)}".strip()),
        "plan": "none (exploring)" if record.plan_hash is None else record.plan_hash[:12],
        **({"deviations": len(record.deviations)} if record.deviations else {}),
        **({"verdict": mark(str(record.verdict.get("outcome", "")))} if record.verdict else {}),
        "device": (record.device or {}).get("name", "not described"),
        "model": (record.model or {}).get("name", "not described"),
        **({"samples": samples} if samples is not None else {}),
        "started": record.started,
        **({"checks": "none"} if not record.checks else {}),
    }
    checks = [(mark("passed" if one.passed else "FAILED"), one.name, one.detail) for one in record.checks]
    return Html(facts_table(facts, record.id) + (table(("check", "of", "detail"), checks) if checks else ""))
