"""Statistics of the values of a tensor, in two passes over pieces of a bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 32

Passes = Callable[[], Iterator[NDArray[Any]]]
"""Starts a new pass over the values."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the values of a tensor look like; all but the counts are about finite values only.

    Attributes:
        count: All values.
        non_finite: Infinities and NaN.
        zeros: Values that are zero of either sign.
        minimum: Smallest value, None without finite values.
        maximum: Largest value.
        mean: Arithmetic mean.
        std: Standard deviation of the values themselves (divided by their number).
        histogram: How many values lie in each of `BINS` equal steps from minimum to maximum.
    """

    count: int
    non_finite: int
    zeros: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    std: float | None
    histogram: tuple[int, ...]

    @property
    def zero_fraction(self) -> float:
        """Part of the values that are zero."""
        return self.zeros / self.count if self.count else 0.0

    def to_json(self) -> dict[str, Any]:
        """The statistics as a JSON object."""
        return {
            "count": self.count,
            "non_finite": self.non_finite,
            "zeros": self.zeros,
            "zero_fraction": self.zero_fraction,
            "min": self.minimum,
            "max": self.maximum,
            "mean": self.mean,
            "std": self.std,
            "histogram": list(self.histogram),
        }


def describe(passes: Passes) -> Statistics:
    """Compute the statistics of values that are read twice.

    Args:
        passes: Gives the values piece by piece, the same ones each time.
    """
    first = _FirstPass()
    for piece in passes():
        first.add(piece)
    finite = first.count - first.non_finite
    if not finite:
        return Statistics(first.count, first.non_finite, 0, None, None, None, None, ())
    mean = first.total / finite
    squares = 0.0
    bins = np.zeros(BINS, np.int64)
    # A range that is not itself a number cannot be cut into steps.
    has_steps = math.isfinite(first.maximum - first.minimum)
    for piece in passes():
        values = _finite(piece)
        if has_steps:
            bins += _bin_counts(values, first.minimum, first.maximum)
        with np.errstate(over="ignore"):
            values -= mean
            squares += float(np.square(values, out=values).sum())
    return Statistics(
        count=first.count,
        non_finite=first.non_finite,
        zeros=first.zeros,
        minimum=first.minimum,
        maximum=first.maximum,
        mean=_number(mean),
        std=_number(math.sqrt(squares / finite)) if math.isfinite(squares) else None,
        histogram=tuple(bins.tolist()) if has_steps else (),
    )


@dataclass(slots=True)
class _FirstPass:
    count: int = 0
    non_finite: int = 0
    zeros: int = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    def add(self, piece: NDArray[Any]) -> None:
        values = _finite(piece)
        self.count += piece.size
        self.non_finite += piece.size - values.size
        if not values.size:
            return
        self.zeros += values.size - int(np.count_nonzero(values))
        with np.errstate(over="ignore"):
            self.total += float(values.sum())
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))


def _bin_counts(values: NDArray[np.float64], minimum: float, maximum: float) -> NDArray[np.int64]:
    """How many values lie in each step; the last step includes its end."""
    if minimum == maximum:
        return np.bincount([0], [values.size], BINS).astype(np.int64)
    steps = (values - minimum) / (maximum - minimum) * BINS
    counts = np.bincount(steps.astype(np.intp), minlength=BINS + 1)
    counts[BINS - 1] += counts[BINS]
    return counts[:BINS]


def _finite(piece: NDArray[Any]) -> NDArray[np.float64]:
    """A new array of the finite values."""
    with np.errstate(invalid="ignore"):  # A signalling NaN becomes a quiet one.
        values = piece.astype(np.float64)
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
