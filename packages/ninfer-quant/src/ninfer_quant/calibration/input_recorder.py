"""Watching the inputs of projections: maxima, mean squares and second moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ninfer_quant.calibration.records import InputStatistics
from ninfer_quant.errors import ConversionError

if TYPE_CHECKING:
    from ninfer_runtime.device.tensor import Tensor


class _Sums:
    """Sums over the rows of one input of width K."""

    def __init__(self, K: int, *, keeps_hessian: bool) -> None:
        self.rows = 0
        self.amax = np.float32(0)
        self.squares = np.zeros(K)
        self.products = np.zeros((K, K), np.float32) if keeps_hessian else None

    def add(self, x: np.ndarray) -> None:
        self.rows += len(x)
        self.amax = max(self.amax, np.float32(np.abs(x).max()))
        self.squares += np.square(x, dtype=np.float64).sum(axis=0)
        if self.products is not None:
            self.products += x.T @ x

    def statistics(self) -> InputStatistics:
        moment = (self.squares / self.rows).astype(np.float32)
        hessian = None
        if self.products is not None:
            hessian = self.products / np.float32(self.rows)
            # Of both sums this one does not round from row to row.
            np.fill_diagonal(hessian, moment)
        return InputStatistics(self.amax, moment, hessian)


class InputRecorder:
    """Is shown the inputs of projections, and keeps what a calibration needs of them.

    Inputs of one name are one tensor, which several projections may use; it is shown once.

    Args:
        keeps_hessian: Also keep second moments between columns.

    Attributes:
        row: The row of the corpus that is being read, for messages.
    """

    def __init__(self, *, keeps_hessian: bool) -> None:
        self.row = 0
        self._keeps_hessian = keeps_hessian
        self._sums: dict[str, _Sums] = {}

    def __call__(self, input_name: str, x: Tensor) -> None:
        """Count the rows ``[T, K]`` of an input.

        Raises:
            ConversionError: A value is NaN or infinite; layer, site, row and numbers are named.
        """
        values = np.asarray(x.device.to_host(x), np.float32)
        _refuse_non_finite(input_name, values, self.row)
        if input_name not in self._sums:
            K = values.shape[1]
            self._sums[input_name] = _Sums(K, keeps_hessian=self._keeps_hessian)
        self._sums[input_name].add(values)

    def statistics(self) -> dict[str, InputStatistics]:
        """What was seen, by input."""
        return {name: sums.statistics() for name, sums in self._sums.items()}


def _refuse_non_finite(input_name: str, values: np.ndarray, row: int) -> None:
    finite = np.isfinite(values)
    if finite.all():
        return
    token, column = (int(axis) for axis in np.argwhere(~finite)[0])
    nans = int(np.isnan(values).sum())
    infinities = int(values.size - finite.sum()) - nans
    raise ConversionError(
        f"{input_name}: {values[token, column]} at token {token}, column {column} of row {row}; "
        f"NaN: {nans}, infinite: {infinities} of {values.size} values",
        hint="check the weights of this layer and the one before it",
    )
