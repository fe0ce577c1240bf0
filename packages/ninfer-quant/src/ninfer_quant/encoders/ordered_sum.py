"""Sums whose rounding depends on nothing but their terms."""

from __future__ import annotations

from ninfer_quant.array_module import Array


def sum_first_axis(terms: Array) -> Array:
    """Sum over the first axis, whose length is a power of two, by adding halves; destroys `terms`.

    The library's own sums choose their order by the shape of the array and by the device.
    """
    while len(terms) > 1:
        half = len(terms) // 2
        terms[:half] += terms[half:]
        terms = terms[:half]
    return terms[0]
