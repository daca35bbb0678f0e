"""The result of an operations bench: its samples, and a table of microseconds, rates, shares of the ceilings, errors."""

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from labkit.measure.bench.ceilings import Ceilings
from labkit.measure.bench.report import WIDTH, bounds, geometric, number
from labkit.measure.ops_bench.cases import Timed

HEADS = ("operation", "shape", "rows", "depth", "us", "95 %", "GB/s", "read", "TF/s", "matrix", "error", "kernel")


def samples(timed: Timed, ceilings: Ceilings) -> list[dict[str, float]]:
    """The metrics of each repetition; the error stands in the first. Nothing but the error of a wrong result."""
    error = {"nmse": timed.error} if timed.error < float("inf") else {}
    found: list[dict[str, float]] = [] if timed.seconds or not error else [error]
    for i, seconds in enumerate(timed.seconds):
        rates = {
            "achieved_gb_s": timed.case.nbytes / seconds / 1e9,
            "achieved_gflop_s": timed.case.flops / seconds / 1e9,
        }
        found.append({"kernel_us": seconds * 1e6, **rates, **ceilings.shares(rates), **(error if i == 0 else {})})
    return found


def plain(timed: Timed, ceilings: Ceilings) -> dict[str, Any]:
    """As JSON has it."""
    found = {"operation": timed.case.operation, **timed.case.knobs, "right": timed.right, "limit": timed.limit}
    each = samples(timed, ceilings)
    names = dict.fromkeys(name for metrics in each for name in metrics)
    found |= {name: median(metrics[name] for metrics in each if name in metrics) for name in names}
    if timed.seconds:
        rate = geometric([seconds * 1e6 for seconds in timed.seconds])
        found |= {"kernel_us": rate.estimate, "kernel_us_low": rate.low, "kernel_us_high": rate.high, "n": rate.n}
    return found | {"kernels": list(timed.kernels), "why": timed.why, "fingerprint": timed.fingerprint}


def table(results: Sequence[Timed], ceilings: Ceilings) -> str:
    """A line a case, at most 120 columns wide."""
    lines = [HEADS, *(_line(timed, ceilings) for timed in results)]
    keep = [i for i in range(len(HEADS)) if any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in keep}
    left = {"operation", "shape", "kernel"}
    return "\n".join(
        "  ".join(line[i].ljust(widths[i]) if HEADS[i] in left else line[i].rjust(widths[i]) for i in keep).rstrip()[
            :WIDTH
        ]
        for line in lines
    )


def _line(timed: Timed, ceilings: Ceilings) -> tuple[str, ...]:
    knobs = timed.case.knobs
    shape = " ".join(str(knobs[name]) for name in ("matrix", "layout") if name in knobs)
    if "n" in knobs:
        shape += f" {knobs['n']}x{knobs['k']}"
    shape += "".join(f"{name} {knobs[name]}" for name in ("width", "vocab") if name in knobs)
    kernels = ", ".join(dict.fromkeys(re.split(r"[.(]", kernel)[0] for kernel in timed.kernels))
    first = (timed.case.operation, shape, str(knobs.get("rows", "")), str(knobs.get("depth", "")))
    error = f"{timed.error:.0e}" + ("" if timed.right else " WRONG")
    if not timed.seconds:
        return (*first, "", "", "", "", "", "", error, kernels)
    time = geometric([seconds * 1e6 for seconds in timed.seconds])
    rates = samples(timed, ceilings)
    middle = {name: median(each[name] for each in rates) for name in rates[-1]}
    return (
        *first, number(time.estimate), bounds(time), number(middle["achieved_gb_s"]),
        f"{100 * middle['share_of_read_bandwidth']:.0f}%", number(middle["achieved_gflop_s"] / 1e3),
        f"{100 * middle['share_of_matrix_rate']:.0f}%", error, kernels,
    )  # fmt: skip
