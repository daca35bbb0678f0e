"""The reference of metrics: id, unit, better direction, definition and formula of each that is registered."""

from labkit.lab.reference.registry import Pages, reference
from labkit.lab.reference.text import code, head, prose, table
from labkit.measure.metrics import METRICS

ABOUT = (
    "Every number that a run records has one of these ids. A rule, a table and the audit mean by an id what stands here; "
    "another definition is another id. *Timed* metrics come from a clock, and are worth nothing where a correctness check "
    "failed. `1` is the unit of a share or a count."
)


@reference
def metrics() -> Pages:
    """Every metric by its id."""
    rows = (
        (code(one.id), code(one.unit), one.better, prose(one.row()[3]), code(one.formula), "yes" if one.timed else "")
        for _, one in sorted(METRICS.items())
    )
    columns = ("id", "unit", "better", "definition", "formula", "timed")
    yield "metrics.md", f"{head('Metrics', 'labkit/measure/metrics.py', ABOUT)}\n{table(columns, rows)}"
