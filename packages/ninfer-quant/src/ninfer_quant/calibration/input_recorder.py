"""Watching the inputs of projections: maxima, mean squares and second moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ninfer_quant.calibration.expert_pools import Coverage, fill_in_experts
from ninfer_quant.calibration.input_sums import InputSums
from ninfer_quant.calibration.records import InputStatistics
from ninfer_quant.errors import NonFiniteInputError

if TYPE_CHECKING:
    from ninfer_runtime.device.tensor import Tensor


class InputRecorder:
    """Is shown the inputs of projections, and keeps what a calibration needs of them.

    Inputs of one name are one tensor, which several projections may use; it is shown once. What a row
    of the corpus shows counts when `keep_row` is called.

    Args:
        keeps_hessian: Also keep second moments between columns.

    Attributes:
        row: The row of the corpus that is being read, for messages.
    """

    def __init__(self, *, keeps_hessian: bool) -> None:
        self.row = 0
        self._keeps_hessian = keeps_hessian
        self._sums: dict[str, InputSums] = {}
        self._shown: list[tuple[str, np.ndarray]] = []

    def __call__(self, input_name: str, x: Tensor) -> None:
        """Look at the rows ``[T, K]`` of an input.

        Raises:
            NonFiniteInputError: A value is NaN or infinite; layer, site, row and numbers are named.
        """
        # A copy, because the model may go on in the same memory.
        values = np.array(x.device.to_host(x), np.float32)
        _refuse_non_finite(input_name, values, self.row)
        self._shown.append((input_name, values))

    def keep_row(self) -> None:
        """Count what was shown since the last row."""
        for input_name, values in self._shown:
            if input_name not in self._sums:
                K = values.shape[1]
                self._sums[input_name] = InputSums(K, keeps_hessian=self._keeps_hessian)
            self._sums[input_name].add(values)
        self._shown.clear()

    def drop_row(self) -> None:
        """Forget what was shown since the last row."""
        self._shown.clear()

    def statistics(
        self, expected: Mapping[str, int]
    ) -> tuple[dict[str, InputStatistics], Coverage]:
        """What was seen, by input.

        Args:
            expected: Widths of all inputs of the layer, by name. Experts among them that saw too few
                tokens are helped out by the others.

        Returns:
            The statistics, and how many experts had to be helped.
        """
        coverage = fill_in_experts(self._sums, expected, keeps_hessian=self._keeps_hessian)
        return {name: sums.statistics() for name, sums in self._sums.items()}, coverage


def _refuse_non_finite(input_name: str, values: np.ndarray, row: int) -> None:
    finite = np.isfinite(values)
    if finite.all():
        return
    token, column = (int(axis) for axis in np.argwhere(~finite)[0])
    nans = int(np.isnan(values).sum())
    infinities = int(values.size - finite.sum()) - nans
    raise NonFiniteInputError(
        f"{input_name}: {values[token, column]} at token {token}, column {column} of row {row}; "
        f"NaN: {nans}, infinite: {infinities} of {values.size} values",
        hint="check the weights of this layer and the one before it",
    )
