"""What storing a matrix in a format costs, measured on some of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ninfer_format.codecs import codec_for
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import LAYOUTS
from ninfer_quant.array_module import Device
from ninfer_quant.calibration.records import CalibrationFile
from ninfer_quant.methods.calibrated_input import CALIBRATION
from ninfer_quant.methods.registry import METHODS
from ninfer_quant.methods.request import MethodInput, MethodRequest, Target
from ninfer_quant.pipeline.prepare import WeightObject
from ninfer_quant.sources.logical import select_rows
from ninfer_quant.sources.words import MatrixWords, word_values

Metric = Literal["plain", "diagonal", "hessian"]
"""How errors of weights are counted: all alike, by the mean squares of the inputs, or as errors of
the products with the inputs. Each is relative to what the same measure says of the weights."""

DIRECT = "bf16"
FORMATS = ("q4_g64_fp16", "nvfp4", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", DIRECT)
"""What a plan may choose from."""
_SEARCHED = {"nvfp4": "nvfp4_mse"}
_FED_BACK = {"nvfp4": "nvfp4_gptq"}
_ROW_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to store a matrix.

    Attributes:
        format: Numeric format.
        method: How it is quantized.
        parameters: What the method is told.
        num_bytes: What the object takes.
        error: Relative squared error under the metric.
    """

    format: str
    method: str
    parameters: dict[str, str]
    num_bytes: int
    error: float


@dataclass(frozen=True, eq=False, slots=True)
class Sensitivity:
    """What is known of one object.

    Attributes:
        parameters: Names of the parameters in it.
        shape: Rows and columns.
        metric: How its errors were counted.
        candidates: The formats that can store it, in the order that was asked for.
    """

    parameters: tuple[str, ...]
    shape: tuple[int, int]
    metric: Metric
    candidates: tuple[Candidate, ...]


def measure_sensitivity(
    weight: WeightObject,
    formats: Sequence[str],
    *,
    metric: Metric,
    calibration: CalibrationFile | None,
    rows: int,
    device: Device,
) -> Sensitivity:
    """Quantize evenly spaced rows of an object in every format that can store it.

    Args:
        weight: The object, a matrix.
        formats: Formats to try.
        metric: How errors are counted where the calibration knows the input; plain elsewhere.
        calibration: Needed by the other metrics. With Hessians, error feedback is used.
        rows: Most rows, rounded down to whole blocks of 128.
        device: Where weights are quantized.

    Raises:
        ConversionError: A weight is not finite.
        CheckpointError: The calibration does not fit the object.
    """
    N, K = weight.target.matrix_shape
    known = _known_input(weight, calibration)
    metric = "plain" if known is None else metric
    inputs = _sampled(weight, rows)
    values = _values(inputs, K)
    moments = None
    if calibration is not None and known is not None and metric != "plain":
        read = calibration.hessian if metric == "hessian" else calibration.second_moment
        moments = read(known, K)
    scale = _weighted(values, moments)
    parameters = {CALIBRATION: str(calibration.path)} if calibration and metric == "hessian" else {}
    candidates = []
    for format_name in formats:
        num_bytes = _object_bytes(format_name, (N, K))
        if num_bytes is None:
            continue
        method = _method(format_name, feeds_back=metric == "hessian")
        told = parameters if method.endswith("_gptq") else {}
        error = 0.0
        if format_name != DIRECT:
            target = replace(
                weight.target,
                shape=values.shape,
                format=format_name,
                layout=_layout(format_name),
            )
            stored = _quantized(target, inputs, method, told, device)
            error = _weighted(stored - values, moments) / scale if scale else 0.0
        candidates.append(Candidate(format_name, method, told, num_bytes, error))
    return Sensitivity(weight.request.parameter_names, (N, K), metric, tuple(candidates))


def _known_input(weight: WeightObject, calibration: CalibrationFile | None) -> str | None:
    """The input of all parts of an object, if the calibration has it."""
    if calibration is None:
        return None
    first, *others = (tuple(part.uses) for part in weight.request.inputs)
    if any(uses != first for uses in others):
        return None
    return next((name for name in first if name in calibration.inputs), None)


def _sampled(weight: WeightObject, most: int) -> tuple[MethodInput, ...]:
    """Evenly spaced rows of an object, of all its parts."""
    N, _ = weight.target.matrix_shape
    count = max(_ROW_BLOCK, most // _ROW_BLOCK * _ROW_BLOCK)
    if count >= N:
        return weight.request.inputs
    chosen = [index * N // count for index in range(count)]
    inputs, begin = [], 0
    for part in weight.request.inputs:
        end = begin + part.source.shape[0]
        ranges = [(row - begin, row - begin + 1) for row in chosen if begin <= row < end]
        if ranges:
            inputs.append(replace(part, source=select_rows(part.source, ranges)))
        begin = end
    return tuple(inputs)


def _values(inputs: Sequence[MethodInput], K: int) -> np.ndarray:
    pieces = [
        part.source.read_values(0, part.source.num_elements).astype(np.float32) for part in inputs
    ]
    return np.concatenate(pieces).reshape(-1, K)


def _quantized(
    target: Target,
    inputs: tuple[MethodInput, ...],
    method: str,
    parameters: dict[str, str],
    device: Device,
) -> np.ndarray:
    """What the rows become: float32 ``[rows, K]``."""
    request = MethodRequest(
        target,
        inputs,
        parameters=parameters,
        rows_per_chunk=_ROW_BLOCK * 4,
        device=device,
        auxiliary_overrides={},
    )
    output = _Collected(target)
    METHODS[method].plan(request).produce(output)
    return output.values


class _Collected:
    """Keeps values instead of writing words; implements `ObjectOutput`."""

    def __init__(self, target: Target) -> None:
        self._format = target.format
        self.values = np.empty(target.matrix_shape, np.float32)

    def write_values(self, begin: int, words: np.ndarray) -> None:
        raise TypeError("a matrix format has rows of words")

    def write_rows(self, first_row: int, words: MatrixWords) -> None:
        stored = word_values(self._format, words)
        self.values[first_row : first_row + len(stored)] = stored

    def keep_alive(self) -> None:
        pass


def _weighted(errors: np.ndarray, moments: np.ndarray | None) -> float:
    """Sum over rows of e·eᵀ, e·diag·eᵀ or e·H·eᵀ."""
    wide = errors.astype(np.float64)
    if moments is None:
        return float(np.square(wide).sum())
    if moments.ndim == 1:
        return float((np.square(wide) * moments).sum())
    # In binary32, because moments of a large model in binary64 would take gigabytes.
    return float(((errors @ moments) * wide).sum())


def _layout(format_name: str) -> str:
    return next(layout.name for layout in LAYOUTS.values() if format_name in layout.formats)


def _object_bytes(format_name: str, shape: tuple[int, int]) -> int | None:
    """Bytes of an object, None if the format cannot store it."""
    try:
        return codec_for(format_name, _layout(format_name), shape).geometry.num_bytes
    except ArtifactError:
        return None


def _method(format_name: str, *, feeds_back: bool) -> str:
    if format_name == DIRECT:
        return "cast_direct"
    if feeds_back:
        return _FED_BACK.get(format_name, "grouped_gptq")
    return _SEARCHED.get(format_name, "grouped_mse")
