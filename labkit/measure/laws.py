"""Laws: a time as a sum of terms, each a coefficient times something known of a cell, fitted with 95 % intervals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import ParameterError
from labkit.measure.statistics import LEVEL, Interval, interval, t_quantile


@dataclass(frozen=True)
class Law:
    """time = sum over terms of coefficient x value.

    `coefficients`: by term, in units of the time a unit of the term. `fitted`: the law at each cell; `residuals`: what
    each cell's mean time lies above it, as a share of it."""

    coefficients: dict[str, Interval]
    fitted: tuple[float, ...]
    residuals: tuple[float, ...]

    def at(self, **values: float) -> float:
        """The law where the terms have these `values`. ParameterError unless every term has one."""
        if values.keys() != self.coefficients.keys():
            raise ParameterError(f"the law has the terms {', '.join(self.coefficients)}, not {', '.join(values)}")
        return math.fsum(found.estimate * values[name] for name, found in self.coefficients.items())

    @property
    def worst(self) -> float:
        """The largest residual, whatever its sign."""
        return max(map(abs, self.residuals))

    def sign(self, term: str) -> int:
        """1 or -1 where the whole interval of a term's coefficient lies above or below 0, else 0: nothing was shown."""
        found = self.coefficients[term]
        if found.low is None or found.high is None:
            return 0
        return int(found.low > 0) - int(found.high < 0)


def fit_law(terms: Mapping[str, ArrayLike], times: ArrayLike) -> Law:
    """The law of these `terms` (by name, a value a cell) that fits `times` [cells, blocks] best in relative error.

    Least squares of (time - law) / mean time of the cell: the noise of a timing is in proportion to it. A coefficient's
    interval is the wider of two: over the blocks, each fitted alone (noise and drift), and by Student's t from what the
    law leaves of the cells' means (a law that does not hold). Neither exists for one block and as many terms as cells.
    ParameterError for fewer cells than terms, terms that cannot be told apart, or times that are not positive."""
    data = np.asarray(times, dtype=np.float64)
    if data.ndim != 2 or not data.size or not np.isfinite(data).all() or (data <= 0).any():
        raise ParameterError("a law is fitted to positive times [cells, blocks], at least one of each")
    names, cells = list(terms), len(data)
    columns: NDArray[np.float64] = np.array([np.asarray(terms[name], dtype=np.float64) for name in names])
    if columns.shape != (len(names), cells) or not np.isfinite(columns).all():
        raise ParameterError(f"each of the terms {', '.join(names)} needs one value for each of {cells} cells")
    mean = data.mean(axis=1)
    size = np.abs(columns).max(axis=1)
    scaled = (columns / np.where(size > 0, size, 1)[:, None] / mean).T  # [cells, terms]
    if cells < len(names) or np.linalg.matrix_rank(scaled / np.linalg.norm(scaled)) < len(names):
        raise ParameterError(
            f"{cells} cells do not tell the terms {', '.join(names)} apart: measure at more different values"
        )
    solve = np.linalg.pinv(scaled)
    each = (solve @ (data / mean[:, None])) / size[:, None]  # [terms, blocks]
    found = each.mean(axis=1)
    fitted = found @ columns
    freedom = cells - len(names)
    rest = (mean - fitted) / mean
    errors = np.sqrt(rest @ rest / freedom * (solve**2).sum(axis=1)) / size if freedom else None
    coefficients = {
        name: _wider(interval(each[i]), float(errors[i]) if errors is not None else None, freedom)
        for i, name in enumerate(names)
    }
    return Law(coefficients, tuple(map(float, fitted)), tuple(map(float, mean / fitted - 1)))


def _wider(blocks: Interval, error: float | None, freedom: int) -> Interval:
    """The interval over blocks, or the one from the residuals where it is wider."""
    if error is None:
        return blocks
    half = t_quantile(freedom, LEVEL) * error
    if blocks.low is not None and blocks.high is not None and blocks.high - blocks.low >= 2 * half:
        return blocks
    return Interval(blocks.estimate, blocks.estimate - half, blocks.estimate + half, blocks.n, "t")
