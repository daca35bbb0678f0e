"""The units claims are written in: one table from what people write to a dimension and a factor."""

import re
from dataclasses import dataclass

from labkit.errors import ParameterError
from labkit.measure.metrics import METRICS


@dataclass(frozen=True)
class Unit:
    """What a unit measures, and its size in the dimension's own unit (tok/s, s, GB/s, GFLOP/s, W, bytes, ...)."""

    dimension: str
    factor: float


# dimension's own unit -> {as written, in small letters without blanks: size}
TABLE: dict[str, dict[str, float]] = {
    "tok/s": {
        "tok/s": 1, "t/s": 1, "tokens/s": 1, "token/s": 1, "toks/s": 1, "tps": 1, "tok/sec": 1, "tokens/sec": 1,
        "tokens/second": 1, "tokenspersecond": 1, "tokensasecond": 1, "ktok/s": 1e3, "kt/s": 1e3, "tok/min": 1 / 60,
        "tokens/min": 1 / 60,
    },
    "req/s": {"req/s": 1, "requests/s": 1, "rps": 1, "req/min": 1 / 60, "requests/min": 1 / 60},
    "s": {
        "s": 1, "sec": 1, "second": 1, "seconds": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9,
        "min": 60, "minutes": 60, "h": 3600, "hours": 3600, "ms/tok": 1e-3, "ms/token": 1e-3, "s/tok": 1, "s/token": 1,
        "us/tok": 1e-6, "us/token": 1e-6, "µs/token": 1e-6, "ms/step": 1e-3, "s/step": 1,
    },
    "GB/s": {
        "gb/s": 1, "gbps": 1, "gbyte/s": 1, "mb/s": 1e-3, "tb/s": 1e3, "gib/s": 2**30 / 1e9, "mib/s": 2**20 / 1e9,
        "tib/s": 2**40 / 1e9,
    },
    "GFLOP/s": {
        "gflop/s": 1, "gflops": 1, "gflops/s": 1, "tflop/s": 1e3, "tflops": 1e3, "tflops/s": 1e3, "tf/s": 1e3, "tf": 1e3,
        "tops": 1e3, "top/s": 1e3, "pflop/s": 1e6, "pflops": 1e6, "pf": 1e6, "mflop/s": 1e-3, "mflops": 1e-3,
    },
    "W": {"w": 1, "watt": 1, "watts": 1, "kw": 1e3, "mw": 1e-3},
    "J/tok": {"j/tok": 1, "j/token": 1, "mj/token": 1e-3, "mj/tok": 1e-3, "wh/tok": 3600, "wh/token": 3600},
    "bytes": {
        "b": 1, "byte": 1, "bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20,
        "gib": 2**30, "tib": 2**40,
    },
    "MHz": {"mhz": 1, "ghz": 1e3, "hz": 1e-6},
    "°C": {"°c": 1, "c": 1, "degc": 1, "celsius": 1},
    "tok": {"tok": 1, "token": 1, "tokens": 1, "ktok": 1e3, "ktokens": 1e3},
    "1": {
        "1": 1, "ratio": 1, "x": 1, "×": 1, "share": 1, "fraction": 1, "count": 1, "%": 0.01, "percent": 0.01,
        "nat": 1, "tok/step": 1, "tokens/step": 1, "steps/s": 1, "passes/s": 1,
    },
}  # fmt: skip
UNITS: dict[str, Unit] = {
    written: Unit(dimension, factor) for dimension, table in TABLE.items() for written, factor in table.items()
}
# What a registered metric's unit is in the table's terms: (dimension, how many of the metric's units make one of its).
METRIC_UNITS: dict[str, tuple[str, float]] = {
    "tok/s": ("tok/s", 1), "req/s": ("req/s", 1), "s": ("s", 1), "ms": ("s", 1e3), "us": ("s", 1e6), "GB/s": ("GB/s", 1),
    "GFLOP/s": ("GFLOP/s", 1), "W": ("W", 1), "J/tok": ("J/tok", 1), "bytes": ("bytes", 1), "MHz": ("MHz", 1),
    "°C": ("°C", 1), "tok": ("tok", 1), "1": ("1", 1), "nat": ("1", 1), "cycles": ("1", 1),
}  # fmt: skip
WORDS = {"tok/s": "a rate of tokens", "s": "a time", "GB/s": "a bandwidth", "GFLOP/s": "a rate of operations"}


def unit_of(text: str) -> Unit:
    """The unit as written. ParameterError, with the ones there are, for an unknown one."""
    found = UNITS.get(re.sub(r"\s+", "", text).lower())
    if found is None:
        shown = text if len(text) <= 30 else f"{text[:29]}…"
        raise ParameterError(f"{shown!r} is not a known unit; there are {', '.join(UNITS)}")
    return found


def factor_to(metric: str, unit: Unit) -> float:
    """What a value in `unit` is multiplied by to stand in the metric's own unit; 1 for a metric that is not registered.
    ParameterError when the unit measures something else."""
    if metric not in METRICS:
        return unit.factor
    dimension, each = METRIC_UNITS[METRICS[metric].unit]
    if dimension == "tok" and unit.dimension == "1":  # tokens are counted
        return unit.factor
    if dimension != unit.dimension:
        is_ = WORDS.get(unit.dimension, f"in {unit.dimension}")
        raise ParameterError(f"that is {is_}, and {metric} is in {METRICS[metric].unit}")
    return unit.factor * each
