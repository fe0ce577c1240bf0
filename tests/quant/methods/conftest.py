"""Running one method on matrices in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format.layouts import LAYOUTS
from ninfer_quant.calibration.records import InputStatistics, write_calibration
from ninfer_quant.methods.registry import find_method
from ninfer_quant.methods.request import MethodInput, MethodRequest, Target
from ninfer_quant.sources.logical import ArraySource
from ninfer_quant.sources.words import MatrixWords, joined_rows

RunMethod = Callable[..., MatrixWords]
Calibrate = Callable[[np.ndarray], str]
USE = "text/layers/0/ffn_input"


class CollectingOutput:
    """Implements `ObjectOutput` in memory."""

    def __init__(self) -> None:
        self.rows: dict[int, MatrixWords] = {}

    def write_values(self, begin: int, words: np.ndarray) -> None:
        raise AssertionError("the format is not direct")

    def write_rows(self, first_row: int, words: MatrixWords) -> None:
        assert first_row not in self.rows
        self.rows[first_row] = words

    def keep_alive(self) -> None:
        pass

    @property
    def words(self) -> MatrixWords:
        return joined_rows([self.rows[first] for first in sorted(self.rows)])


def request_for(
    format_name: str,
    matrices: Sequence[np.ndarray],
    *,
    parameters: Mapping[str, Any] | None = None,
    rows_per_chunk: int = 512,
    uses: Sequence[str] = (USE,),
) -> MethodRequest:
    layout = next(layout.name for layout in LAYOUTS.values() if format_name in layout.formats)
    rows = sum(len(matrix) for matrix in matrices)
    return MethodRequest(
        Target("weight/000000", (rows, matrices[0].shape[1]), format_name, layout),
        tuple(
            MethodInput(
                f"text/p{index}",
                matrix.shape,
                0,
                ArraySource(matrix, f"t{index}"),
                dict.fromkeys(uses, "A16Only"),
            )
            for index, matrix in enumerate(matrices)
        ),
        parameters=parameters or {},
        rows_per_chunk=rows_per_chunk,
        auxiliary_overrides={},
    )


@pytest.fixture(scope="session")
def run_method() -> RunMethod:
    """``run_method(name, format, *matrices, rows_per_chunk=…, parameters=…)``: all words."""

    def run(name: str, format_name: str, *matrices: np.ndarray, **options: Any) -> MatrixWords:
        request = request_for(format_name, matrices, **options)
        output = CollectingOutput()
        find_method(name).plan(request).produce(output)
        return output.words

    return run


@pytest.fixture
def calibrate(tmp_path: Path) -> Calibrate:
    """Write a calibration of the inputs ``[T, K]`` of a use; returns its path."""

    def write(inputs: np.ndarray) -> str:
        wide = inputs.astype(np.float64)
        hessian = (wide.T @ wide / len(wide)).astype(np.float32)
        record = InputStatistics(
            np.float32(np.abs(inputs).max()), hessian.diagonal().copy(), hessian
        )
        path = tmp_path / "calibration.safetensors"
        write_calibration(path, {USE: record}, {}, force=True)
        return str(path)

    return write
