"""nvfp4 from values: scales of blocks of 16 columns, and the codes under given scales.

A divisor d for the whole matrix maps its values W to ``x = W·d``; a block has a scale s, and a code
means ``q·s`` with an E2M1 number q. All steps round in binary32. Errors ``q·s - x`` are exact there
unless they are large, and their squares are summed in binary64, so that scales compare as they
should (recipes, section 9).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from ninfer_format.codecs.small_floats import E2M1_VALUES
from ninfer_format.dtypes import NVFP4
from ninfer_quant.array_module import Array, is_numpy
from ninfer_quant.encoders.ordered_sum import sum_first_axis
from ninfer_quant.encoders.small_floats import (
    E4M3_SCALES,
    LARGEST_E2M1,
    LARGEST_E4M3,
    e2m1_codes,
    e2m1_codes_ties_down,
    e4m3_words,
    nearest_e2m1,
)

GROUP = NVFP4.group
ABSMAX_RANGE = np.float32(6 * 448)
"""What the largest magnitude of a matrix becomes."""
FOUR_OVER_SIX_RANGE = np.float32(6 * 256)
"""The same where a block may be stretched by half: 256 · 1.5 is below the largest scale."""
RATIOS = tuple(np.float32(1 - 0.05 * step) for step in range(11))

_CACHED_ELEMENTS = 1 << 17
"""Elements that a search handles at a time on a CPU: intermediate values then stay in the cache."""
_OCTAVE = 8
"""E4M3FN numbers from one to its double."""
_LAST_WITHOUT_HALF = 15
"""Largest scale word of an odd multiple of the smallest step: its half may be no E4M3FN number."""


class ScaleSearch(Protocol):
    """Chooses the scale words of blocks."""

    def __call__(self, xp: Any, magnitudes: Array, weights: Array | None) -> Array:
        """Scale words uint8 ``[n]`` for blocks given as magnitudes |x|, float32 ``[16, n]``.

        `weights` are those of the squared errors: float32 ``[16, n]``, None for equal ones.
        """
        ...


def divisor_of(largest: np.float32, full_range: np.float32) -> np.float32:
    """The divisor of a matrix with this largest magnitude; 1 for a matrix of zeros."""
    if largest == 0:
        return np.float32(1)
    with np.errstate(over="ignore"):
        return np.float32(full_range / largest)


def encode_ties_down(xp: Any, x: Array) -> tuple[Array, Array]:
    """Codes and scales as `nvfp4_absmax` defines them: scale max/6, ties to smaller magnitudes.

    Args:
        xp: Array module.
        x: Values times divisor, float32 ``[N, K]``; destroyed.

    Returns:
        uint8 ``[N, K]`` and ``[N, K / 16]``.
    """
    blocks = x.reshape(len(x), -1, GROUP)
    words = _absmax_words(xp, xp.abs(blocks).max(axis=2))
    blocks /= _finite_scales(xp, words)[:, :, np.newaxis]
    return e2m1_codes_ties_down(xp, x), words


def search_scales(xp: Any, x: Array, search: ScaleSearch, weights: Array | None = None) -> Array:
    """Choose the scale words of all blocks of a matrix.

    Args:
        xp: Array module.
        x: Values times divisor, float32 ``[N, K]``.
        search: How.
        weights: Weight of the squared errors of each column, float32 ``[K]``.

    Returns:
        uint8 ``[N, K / 16]``.
    """
    N, K = x.shape
    groups = K // GROUP
    blocks = x.reshape(-1, GROUP)
    by_group = None if weights is None else weights.reshape(groups, GROUP).T
    words = xp.empty(len(blocks), xp.uint8)
    # Whole rows, so that the weights of columns can be repeated.
    step = groups * (max(1, _CACHED_ELEMENTS // K) if is_numpy(xp) else N)
    for begin in range(0, len(blocks), step):
        magnitudes = xp.abs(xp.ascontiguousarray(blocks[begin : begin + step].T))
        repeated = (
            None if by_group is None else xp.tile(by_group, (1, magnitudes.shape[1] // groups))
        )
        words[begin : begin + step] = search(xp, magnitudes, repeated)
    return words.reshape(N, groups)


def codes_under(xp: Any, x: Array, words: Array) -> Array:
    """The nearest codes of a matrix whose scales are chosen, ties to the even code.

    Args:
        xp: Array module.
        x: Values times divisor, float32 ``[N, K]``.
        words: Scale words, uint8 ``[N, K / 16]``.

    Returns:
        uint8 ``[N, K]``.
    """
    magnitudes = xp.abs(x)
    blocks = magnitudes.reshape(len(x), -1, GROUP)
    blocks /= _finite_scales(xp, words)[:, :, np.newaxis]
    return e2m1_codes(xp, nearest_e2m1(xp, magnitudes), x < 0)


def scale_values(xp: Any, words: Array) -> Array:
    """Values of scale words, float32."""
    return xp.asarray(E4M3_SCALES)[words]


def values_under(xp: Any, codes: Array, words: Array) -> Array:
    """What codes mean, times the divisor: float32 ``[N, K]``, exact."""
    blocks = xp.asarray(E2M1_VALUES)[codes].reshape(len(codes), -1, GROUP)
    blocks *= scale_values(xp, words)[:, :, np.newaxis]
    return blocks.reshape(codes.shape)


def block_errors(xp: Any, magnitudes: Array, words: Array, weights: Array | None) -> Array:
    """Σ w·(q·s - |x|)² of each block under its scale word: float64 ``[n]``."""
    scales = scale_values(xp, words)
    errors = nearest_e2m1(xp, magnitudes / _infinite_for_zero(xp, scales))
    errors *= scales
    errors -= magnitudes
    squares = errors.astype(xp.float64)
    squares *= squares
    if weights is not None:
        squares *= weights
    return sum_first_axis(squares)


# --- searches ------------------------------------------------------------------------------


def best_ratio(xp: Any, magnitudes: Array, weights: Array | None) -> Array:
    """`ScaleSearch`: max/6 times 1, 0.95, … 0.5; the first of equally good ones."""
    largest = magnitudes.max(axis=0) / LARGEST_E2M1
    candidates = (_rounded_words(xp, largest * ratio) for ratio in RATIOS)
    return _first_best(xp, magnitudes, weights, candidates)


def best_of_four_and_six(xp: Any, magnitudes: Array, weights: Array | None) -> Array:
    """`ScaleSearch`: max/6, or max/4 where that is better."""
    largest = magnitudes.max(axis=0)
    candidates = (_rounded_words(xp, largest / np.float32(code)) for code in (6, 4))
    return _first_best(xp, magnitudes, weights, candidates)


def best_of_all(xp: Any, magnitudes: Array, weights: Array | None) -> Array:
    """`ScaleSearch`: every positive scale; the smallest of equally good ones.

    Only some are tried. A scale of at least max/3 whose half exists too is never better than its
    half: the numbers that the codes mean under it, up to the maximum, are among those under the
    half. And below max/6 the clipping of the largest value alone, which only grows when the scale
    shrinks, soon costs more than the best found so far.
    """
    n = magnitudes.shape[1]
    largest = magnitudes.max(axis=0)
    at = magnitudes.argmax(axis=0)
    clip_weights = None if weights is None else weights[at, xp.arange(n)].astype(xp.float64)
    thirds = xp.asarray(E4M3_SCALES[1:] * np.float32(3))
    words = xp.searchsorted(thirds, largest).astype(xp.int32)
    xp.maximum(words, np.int32(_LAST_WITHOUT_HALF), out=words)
    best, least = words, block_errors(xp, magnitudes, words, weights)
    for _ in range(_OCTAVE - 1):
        words = words - np.int32(1)
        errors = block_errors(xp, magnitudes, words, weights)
        # Not worse will do: the scales descend, and the smallest is wanted.
        best = xp.where(errors <= least, words, best)
        least = xp.minimum(errors, least)
    active = xp.arange(n)
    while True:
        words = words - np.int32(1)
        bound = _clipping(
            xp, largest[active], words, None if clip_weights is None else clip_weights[active]
        )
        kept = xp.flatnonzero((words > 0) & (bound <= least[active]))
        if not len(kept):
            break
        active, words = active[kept], words[kept]
        part = None if weights is None else weights[:, active]
        errors = block_errors(xp, magnitudes[:, active], words, part)
        best[active] = xp.where(errors <= least[active], words, best[active])
        least[active] = xp.minimum(errors, least[active])
    best[largest == 0] = 0
    return best.astype(xp.uint8)


def _clipping(xp: Any, largest: Array, words: Array, weights: Array | None) -> Array:
    """What the largest value alone adds to `block_errors` because it is cut off: float64 [n]."""
    scales = scale_values(xp, xp.maximum(words, np.int32(0)))
    cut = xp.maximum(largest - LARGEST_E2M1 * scales, np.float32(0)).astype(xp.float64)
    cut *= cut
    return cut if weights is None else cut * weights


def _first_best(
    xp: Any, magnitudes: Array, weights: Array | None, candidates: Iterable[Array]
) -> Array:
    best = least = None
    for words in candidates:
        errors = block_errors(xp, magnitudes, words, weights)
        if best is None:
            best, least = words, errors
        else:
            best = xp.where(errors < least, words, best)
            least = xp.minimum(errors, least)
    return best


# --- scales --------------------------------------------------------------------------------


def _absmax_words(xp: Any, largest: Array) -> Array:
    return _rounded_words(xp, largest / LARGEST_E2M1)


def _rounded_words(xp: Any, scales: Array) -> Array:
    return e4m3_words(xp, xp.minimum(scales, LARGEST_E4M3))


def _finite_scales(xp: Any, words: Array) -> Array:
    return _infinite_for_zero(xp, scale_values(xp, words))


def _infinite_for_zero(xp: Any, scales: Array) -> Array:
    """Under a scale of zero, infinity makes every quotient and so every code zero."""
    return xp.where(scales == 0, np.float32(np.inf), scales)
