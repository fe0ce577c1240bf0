"""What a recipe has decided: row ranges with their format and method, uses and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, get_args

import numpy as np

from ninfer_format.container.schema import ActivationPolicy
from ninfer_quant.methods.request import Method
from ninfer_quant.sources.logical import LogicalSource, select_rows

AUTO_LAYOUT = "auto"
"""Layout of a selection that follows its format."""

IMPORT_ENCODED = "import_encoded"
"""The method that copies words in place of encoding values."""

ACTIVATION_POLICIES: tuple[ActivationPolicy, ...] = get_args(ActivationPolicy)
"""Permitted activation precisions of a use: A16; A16 and A8; A16, A8 and A4."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How values become words.

    Attributes:
        format: Numeric format.
        layout: Storage layout, or `AUTO_LAYOUT`.
        method: Registered name, or a method itself.
        parameters: What the method is told; JSON values.
    """

    format: str
    layout: str = AUTO_LAYOUT
    method: str | Method = "cast_direct"
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Selection:
    """Consecutive rows of one parameter that are encoded alike.

    Attributes:
        parameter: Name of the parameter.
        rows: Half-open range of its rows; None for a scalar.
        source: Source of the whole parameter.
        encoding: How the rows become words.
    """

    parameter: str
    rows: tuple[int, int] | None
    source: LogicalSource
    encoding: Encoding

    @property
    def first_element(self) -> int:
        """Flat position of the first row in the parameter."""
        return 0 if self.rows is None else self.rows[0] * prod(self.source.shape[1:])

    def values(self) -> LogicalSource:
        """The source of these rows alone."""
        return self.source if self.rows is None else select_rows(self.source, [self.rows])


@dataclass(frozen=True, eq=False, slots=True)
class AuxiliaryValue:
    """A small tensor that belongs to one use of a parameter.

    Attributes:
        values: The values in their logical shape.
        format: Direct format in which they are stored.
    """

    values: np.ndarray
    format: str = "fp32"

    def equals(self, other: AuxiliaryValue) -> bool:
        """Whether both store the same words."""
        return (
            self.format == other.format
            and self.values.shape == other.values.shape
            and self.values.tobytes() == other.values.tobytes()
        )


@dataclass(frozen=True, slots=True)
class UseSettings:
    """What a recipe says about one (parameter, input) pair.

    Attributes:
        activation_policy: One of `ACTIVATION_POLICIES`.
        auxiliaries: Extra inputs of the use by role.
    """

    activation_policy: ActivationPolicy = "A16Only"
    auxiliaries: Mapping[str, AuxiliaryValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that a recipe wants in one parent object.

    Attributes:
        parameters: Names in row order.
        shape: Shape of the parent, if the members' shapes do not determine it.
    """

    parameters: tuple[str, ...]
    shape: tuple[int, ...] | None = None
