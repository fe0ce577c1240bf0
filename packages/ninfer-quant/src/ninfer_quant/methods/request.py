"""What a method is asked for, and what it answers.

A method is a callable that gets a `MethodRequest` for one parent object and returns a `MethodJob`.
The job's `produce` is called once with an output; it reads row chunks from the request and writes
their words, every element exactly once, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ninfer_format import get_layout
from ninfer_format.errors import ArtifactError
from ninfer_quant.array_module import Device
from ninfer_quant.errors import ConversionError, RecipeError
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.words import MatrixWords

if TYPE_CHECKING:
    from ninfer_quant.recipes.selection import AuxiliaryValue

AuxiliaryKey = tuple[str, str, str]
"""Parameter, input and role of an auxiliary."""


@dataclass(frozen=True, slots=True)
class Target:
    """The parent object that a method fills.

    Attributes:
        id: Object id.
        shape: Logical shape.
        format: Numeric format.
        layout: Storage layout.
        divisors: Number of equal matrices that are stacked along the rows.
        bitrate_half_bits: Rate of a trellis code in half bits per weight, None for other formats.
    """

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    divisors: int = 1
    bitrate_half_bits: int | None = None

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns: leading axes flattened, a vector is one row."""
        if not self.shape:
            return 1, 1
        return prod(self.shape[:-1]), self.shape[-1]


@dataclass(frozen=True, slots=True)
class MethodInput:
    """One parameter, or consecutive rows of one, inside a parent.

    Attributes:
        parameter: Name of the parameter.
        parameter_shape: Shape of the whole parameter.
        first_element: Flat position of the rows in the parameter.
        source: Source of these rows alone.
        uses: The mathematical inputs of the parameter, with their activation policies.
    """

    parameter: str
    parameter_shape: tuple[int, ...]
    first_element: int
    source: LogicalSource
    uses: Mapping[str, str]


class ObjectOutput(Protocol):
    """Where a method writes the words of its object."""

    def write_values(self, begin: int, words: np.ndarray) -> None:
        """Write words of a direct format, from flat element `begin` of the object."""
        ...

    def write_rows(self, first_row: int, words: MatrixWords) -> None:
        """Write rows of a format that is not direct.

        Args:
            first_row: Row of the object.
            words: Words of the rows, as the codec defines them for a tensor of only these rows.
        """
        ...

    def keep_alive(self) -> None:
        """Say that work goes on though nothing was written for a while.

        It raises when the work shall end, because it was interrupted or another object failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class MethodJob:
    """A method's answer: how to fill the object, and what its uses need beside it.

    Attributes:
        produce: Writes the whole object; called once, possibly on a worker thread.
        auxiliaries: Extra inputs of uses by (parameter, input, role).
    """

    produce: Callable[[ObjectOutput], None]
    auxiliaries: Mapping[AuxiliaryKey, AuxiliaryValue] = field(default_factory=dict)


class Method(Protocol):
    """Turns the values of a parent object into the words of its format."""

    def __call__(self, request: MethodRequest) -> MethodJob:
        """Check the request and say how to fill the object; reads nothing yet."""
        ...


class MethodRequest:
    """One parent object to fill, with the sources of its parts.

    Attributes:
        target: The object.
        inputs: Parts of the object in element order.
        parameters: What the recipe tells the method; JSON values.
        rows_per_chunk: Most rows that are held in memory at once, if the layout's blocks let it.
        device: Where methods that compute do it: ``cpu`` or ``cuda``.
        auxiliary_overrides: Auxiliaries that the recipe has set, by (parameter, input, role).
    """

    def __init__(
        self,
        target: Target,
        inputs: tuple[MethodInput, ...],
        *,
        parameters: Mapping[str, Any],
        rows_per_chunk: int,
        auxiliary_overrides: Mapping[AuxiliaryKey, AuxiliaryValue],
        device: Device = "cpu",
    ) -> None:
        if rows_per_chunk < 1:
            raise RecipeError(f"rows per chunk must be at least 1, found {rows_per_chunk}")
        self.target = target
        self.inputs = inputs
        self.parameters = parameters
        self.rows_per_chunk = rows_per_chunk
        self.device = device
        self.auxiliary_overrides = auxiliary_overrides
        self._starts = [0, *accumulate(part.source.num_elements for part in inputs)]
        self._recent: tuple[int, int, np.ndarray] | None = None

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the parameters in the object, in element order."""
        return tuple(part.parameter for part in self.inputs)

    def refuse_parameters(self, *known: str) -> None:
        """Raise `RecipeError` if the recipe gave the method parameters other than `known`."""
        unknown = sorted(self.parameters.keys() - set(known))
        if unknown:
            takes = f"only {', '.join(known)}" if known else "no parameters"
            raise RecipeError(f"the method takes {takes}, found {unknown}")

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Row ranges of the object (as a matrix) that are to be held in memory one at a time.

        They are whole row blocks of the layout, of one matrix of a stack each.
        """
        rows, _ = self.target.matrix_shape
        block = get_layout(self.target.layout).row_block
        step = max(block, self.rows_per_chunk // block * block)
        share = rows // self.target.divisors
        for begin in range(0, rows, share):
            for first in range(begin, begin + share, step):
                yield first, min(first + step, begin + share)

    def matrix(self, first: int, last: int) -> np.ndarray:
        """Read rows ``[first, last)`` of the object: values ``[rows, K]``; see `values`."""
        K = self.target.matrix_shape[1]
        return self.values(first * K, last * K).reshape(-1, K)

    def values(self, begin: int, end: int) -> np.ndarray:
        """Read flat elements ``[begin, end)`` of the object, across its parts.

        Returns:
            A flat array of the stored dtype; where parts of several dtypes meet in the range,
            of one that holds them all exactly.

        Raises:
            ConversionError: A value is NaN or infinite; tensor, parameter and index are named.
        """
        # Statistics ask again for the range that was just encoded.
        if self._recent is not None and self._recent[:2] == (begin, end):
            return self._recent[2]
        pieces = [self._read_finite(*span) for span in self.spans(begin, end)]
        values = pieces[0] if len(pieces) == 1 else np.concatenate(_same_dtype(pieces))
        self._recent = (begin, end, values)
        return values

    @contextmanager
    def encoding(self, first_row: int) -> Iterator[None]:
        """Name the parameters and the chunk when an encoder refuses values of the chunk.

        Args:
            first_row: Row of the object at which the chunk begins.
        """
        try:
            yield
        except ArtifactError as error:
            first, *others = self.parameter_names
            more = f" (+{len(others)})" if others else ""
            raise ConversionError(
                f"{first}{more}: chunk from row {first_row} of its object: {error}"
            ) from error

    def release(self) -> None:
        """Drop the chunk that was read last."""
        self._recent = None

    def spans(self, begin: int, end: int) -> Iterator[tuple[MethodInput, int, int]]:
        """Split flat elements ``[begin, end)`` of the object into ranges of its parts."""
        for part, start in zip(self.inputs, self._starts, strict=False):
            first, last = max(begin, start), min(end, start + part.source.num_elements)
            if first < last:
                yield part, first - start, last - start

    def _read_finite(self, part: MethodInput, begin: int, end: int) -> np.ndarray:
        values = part.source.read_values(begin, end)
        position = first_nonfinite(values)
        if position is not None:
            flat = part.first_element + begin + position
            index = [int(axis) for axis in np.unravel_index(flat, part.parameter_shape or (1,))]
            raise ConversionError(
                f"tensor {part.source.label!r}: {float(values[position])} at index {index} of "
                f"parameter {part.parameter}; weights must be finite"
            )
        return values


def _same_dtype(pieces: list[np.ndarray]) -> list[np.ndarray]:
    """Convert floats of several dtypes to one, since NumPy has none for float16 and bfloat16."""
    dtypes = {piece.dtype for piece in pieces}
    if len(dtypes) == 1:
        return pieces
    common = np.float64 if np.dtype(np.float64) in dtypes else np.float32
    return [piece if piece.dtype.kind in "iub" else piece.astype(common) for piece in pieces]


def first_nonfinite(values: np.ndarray) -> int | None:
    """Find the first NaN or infinity in a flat array, None if there is none."""
    if values.dtype.kind in "iub":
        return None
    if values.dtype.name == "bfloat16":
        # As signed words the largest is positive, as unsigned words it is the most negative number.
        # Two maxima are many times faster than the generic ufunc of this dtype.
        signed, unsigned = (values.view(word).max(initial=0) for word in (np.int16, np.uint16))
        if signed < 0x7F80 and unsigned < 0xFF80:
            return None
        finite = (values.view(np.uint16) & 0x7F80) != 0x7F80
    else:
        finite = np.isfinite(values)
    if finite.all():
        return None
    return int(np.argmin(finite))
