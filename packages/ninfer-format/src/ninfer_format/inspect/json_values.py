"""Numbers and arrays as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_MOST_ITEMS = 16
"""Items of an array that a person is shown."""


def json_value(value: Any) -> Any:
    """Turn NumPy arrays into lists, and numbers that JSON does not have into strings.

    Args:
        value: A JSON value that may hold arrays, NaN and infinities.
    """
    if isinstance(value, dict):
        return {name: json_value(member) for name, member in value.items()}
    if isinstance(value, np.ndarray):
        return json_value(value.tolist())
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def abbreviated(value: Any) -> Any:
    """Cut long arrays of a JSON value short, for a person; a vocabulary has 250,000 items."""
    if isinstance(value, dict):
        return {name: abbreviated(member) for name, member in value.items()}
    if isinstance(value, list):
        items = [abbreviated(item) for item in value[:_MOST_ITEMS]]
        more = len(value) - _MOST_ITEMS
        return [*items, f"... and {more} more"] if more > 0 else items
    return value
