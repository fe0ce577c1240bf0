"""Grouped integers from values: binary16 scales of groups, and the codes under given scales.

The arithmetic is that of the format specification, section 8.1: a code is the rounded product of
the value and the rounded reciprocal of its scale, all in binary32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ninfer_format.dtypes import GroupedFormat
from ninfer_quant.array_module import Array, is_numpy
from ninfer_quant.encoders.ordered_sum import sum_first_axis

_SMALLEST_SCALE = np.float32(2.0**-24)
"""Value of the binary16 word 0x0001, which stands in for scales that round to zero."""
_CACHED_ELEMENTS = 1 << 17
"""Elements that a search handles at a time on a CPU: intermediate values then stay in the cache."""
_SHRINKING_STEPS = 32
_SHRINKING = tuple(
    np.float32(1 - step / (2 * _SHRINKING_STEPS)) for step in range(_SHRINKING_STEPS + 1)
)
"""Factors of the scale that `search_scales` tries: 1 down to 1/2."""


@dataclass(frozen=True, slots=True)
class CodeRange:
    """The codes of a grouped format that an encoder uses.

    Attributes:
        group: Elements that share one scale.
        lowest: Smallest code.
        highest: Largest code, and what the largest magnitude of a group becomes at most.
    """

    group: int
    lowest: int
    highest: int

    @classmethod
    def of(cls, format_: GroupedFormat) -> CodeRange:
        """All codes of a format."""
        return cls(format_.group, format_.qmin, format_.qmax)


def groups_of(xp: Any, x: Array, group: int) -> Array:
    """Cut rows ``[N, K]`` into groups ``[N, ceil(K / G), G]``; a last part is filled with zeros."""
    N, K = x.shape
    groups = -(-K // group)
    if groups * group != K:
        padded = xp.zeros((N, groups * group), xp.float32)
        padded[:, :K] = x
        x = padded
    return x.reshape(N, groups, group)


def absmax_scales(xp: Any, x: Array, codes: CodeRange) -> Array:
    """The largest magnitude of each group over the largest code, as binary16.

    Args:
        xp: Array module.
        x: Values, float32 ``[N, K]``.
        codes: The codes.

    Returns:
        float16 ``[N, ceil(K / G)]``; infinite where binary16 ends.
    """
    return _half_scales(xp, _maxima(xp, x, codes), np.float32(codes.highest))


def search_scales(xp: Any, x: Array, codes: CodeRange, weights: Array | None = None) -> Array:
    """Between half the scale of `absmax_scales` and all of it, that of the least squared error.

    33 factors are tried, from 1 downwards in steps of 1/64; the first of equally good ones counts.
    A group is given up once the clipping of its largest magnitude alone costs more than the best
    found so far: it only grows.

    Args:
        xp: Array module.
        x: Values, float32 ``[N, K]``.
        codes: The codes.
        weights: Weight of the squared errors of each column, float32 ``[K]``.

    Returns:
        float16 ``[N, ceil(K / G)]``.
    """
    groups = groups_of(xp, x, codes.group)
    N, per_row, _ = groups.shape
    flat = groups.reshape(N * per_row, codes.group)
    by_group = None
    if weights is not None:
        by_group = groups_of(xp, weights[np.newaxis], codes.group)[0].T
    scales = xp.empty(N * per_row, xp.float16)
    # Whole rows, so that the weights of columns can be repeated.
    step = per_row * (max(1, _CACHED_ELEMENTS // x.shape[1]) if is_numpy(xp) else N)
    for begin in range(0, len(flat), step):
        columns = xp.ascontiguousarray(flat[begin : begin + step].T)
        repeated = None if by_group is None else xp.tile(by_group, (1, columns.shape[1] // per_row))
        scales[begin : begin + step] = _search(xp, columns, codes, repeated)
    return scales.reshape(N, per_row)


def codes_under(xp: Any, x: Array, scales: Array, codes: CodeRange) -> Array:
    """The codes of a matrix whose scales are chosen.

    Args:
        xp: Array module.
        x: Values, float32 ``[N, K]``.
        scales: float16 ``[N, ceil(K / G)]``, finite.
        codes: The codes.

    Returns:
        int8 ``[N, K]``.
    """
    N, K = x.shape
    groups = groups_of(xp, x, codes.group)
    nearest = round_to_codes(xp, groups, reciprocals(xp, scales)[:, :, np.newaxis], codes)
    return nearest.astype(xp.int8).reshape(N, -1)[:, :K]


def values_under(xp: Any, codes: Array, scales: Array, used: CodeRange) -> Array:
    """What codes mean: float32 ``[N, K]``, exact."""
    N, K = codes.shape
    groups = groups_of(xp, codes.astype(xp.float32), used.group)
    return (groups * scales.astype(xp.float32)[:, :, np.newaxis]).reshape(N, -1)[:, :K]


def round_to_codes(xp: Any, x: Array, inverse: Array, codes: CodeRange) -> Array:
    """Codes as float32: products with the reciprocal of the scale, rounded and cut off."""
    nearest = x * inverse
    xp.rint(nearest, out=nearest)
    xp.clip(nearest, np.float32(codes.lowest), np.float32(codes.highest), out=nearest)
    return nearest


def reciprocals(xp: Any, scales: Array) -> Array:
    """1/scale in binary32, 0 for a scale of zero."""
    wide = scales.astype(xp.float32)
    safe = xp.where(wide > 0, wide, np.float32(1))
    return xp.where(wide > 0, np.float32(1) / safe, np.float32(0))


def _search(xp: Any, columns: Array, codes: CodeRange, weights: Array | None) -> Array:
    """Scales of groups that are columns: float32 ``[G, n]`` to float16 ``[n]``."""
    magnitudes = xp.abs(columns)
    at = magnitudes.argmax(axis=0)
    everyone = xp.arange(len(at))
    extreme = columns[at, everyone]
    largest = xp.abs(extreme)
    # What the code of the largest magnitude can be at most, on its side of zero.
    reach = xp.where(extreme < 0, np.float32(-codes.lowest), np.float32(codes.highest))
    clip_weights = None if weights is None else weights[at, everyone].astype(xp.float64)
    best = _half_scales(xp, largest, np.float32(codes.highest))
    least = _errors(xp, columns, best, codes, weights)
    active = everyone
    for factor in _SHRINKING[1:]:
        scales = _half_scales(xp, largest[active] * factor, np.float32(codes.highest))
        cut = xp.maximum(largest[active] - reach[active] * scales.astype(xp.float32), np.float32(0))
        bound = cut.astype(xp.float64)
        bound *= bound
        if clip_weights is not None:
            bound *= clip_weights[active]
        kept = xp.flatnonzero(bound <= least[active])
        if not len(kept):
            break
        if len(kept) < len(active):
            active, scales = active[kept], scales[kept]
        is_all = len(active) == len(at)
        part = columns if is_all else columns[:, active]
        part_weights = weights if weights is None or is_all else weights[:, active]
        errors = _errors(xp, part, scales, codes, part_weights)
        is_better = errors < least[active]
        best[active] = xp.where(is_better, scales, best[active])
        least[active] = xp.minimum(errors, least[active])
    return best


def _errors(
    xp: Any, columns: Array, scales: Array, codes: CodeRange, weights: Array | None
) -> Array:
    """Σ w·(code·scale - x)² of each group: float64 [n]."""
    errors = round_to_codes(xp, columns, reciprocals(xp, scales), codes)
    errors *= scales.astype(xp.float32)
    errors -= columns
    squares = errors.astype(xp.float64)
    squares *= squares
    if weights is not None:
        squares *= weights
    return sum_first_axis(squares)


def _maxima(xp: Any, x: Array, codes: CodeRange) -> Array:
    return xp.abs(groups_of(xp, x, codes.group)).max(axis=2)


def _half_scales(xp: Any, largest: Array, highest: np.float32) -> Array:
    with np.errstate(over="ignore"):
        scales = (largest / highest).astype(xp.float16)
    return xp.where((scales == 0) & (largest > 0), np.float16(_SMALLEST_SCALE), scales)
