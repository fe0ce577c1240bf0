"""Reading an artifact back and comparing it with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np

from ninfer_format import Artifact
from ninfer_format.workers import Advance
from ninfer_quant.errors import VerificationError
from ninfer_quant.methods.registry import METHODS
from ninfer_quant.pipeline.prepare import Preparation, WeightObject

VerifyMode = Literal["none", "hash", "sample", "full"]
"""Compare nothing; all bytes with what was written; some rows of every object, or everything (padding
included), with the source."""

_SAMPLED_ROWS = 8


def verify_tasks(
    preparation: Preparation, artifact: Artifact, mode: VerifyMode
) -> list[Callable[[Advance], None]]:
    """One task per weight object that is compared with its source.

    The tasks raise `VerificationError` where a stored value differs from its source by more than
    its method allows.
    """
    if mode in ("none", "hash"):
        return []
    return [partial(_verify, artifact, weight, mode) for weight in preparation.weights]


def _verify(artifact: Artifact, weight: WeightObject, mode: VerifyMode, advance: Advance) -> None:
    target = weight.target
    payload = artifact.read_object(target.id)
    codec = artifact.codec(target.id)
    _, K = target.matrix_shape
    for first, last in _row_ranges(weight, mode):
        stored = codec.decode_range(payload, first * K, last * K)
        _compare(weight, first, stored.reshape(-1, K))
        advance(0, weight.request.inputs[0].parameter)
    if mode == "full":
        artifact.verify_object(target.id)
        advance(payload.size, weight.request.inputs[0].parameter)
    weight.request.release()


def _row_ranges(weight: WeightObject, mode: VerifyMode) -> Iterator[tuple[int, int]]:
    if mode == "full":
        yield from weight.request.chunks()
        return
    rows, _ = weight.target.matrix_shape
    count = min(rows, _SAMPLED_ROWS)
    for index in range(count):
        row = index * (rows - 1) // max(1, count - 1)
        yield row, row + 1


def _compare(weight: WeightObject, first_row: int, stored: np.ndarray) -> None:
    format_ = weight.target.format
    begin = first_row * stored.shape[1]
    values = weight.request.values(begin, begin + stored.size).reshape(stored.shape)
    exact = np.float64 if format_ == "int32" else np.float32
    values, stored = values.astype(exact), stored.astype(exact)
    method = METHODS.get(weight.method_name)
    # Nothing is known about a method from a recipe file but that its values must be finite.
    bound = np.float32(np.inf) if method is None else method.error_bound(values, format_)
    wrong = ~(np.abs(stored - values) <= bound) | ~np.isfinite(stored)
    if wrong.any():
        row, column = (int(axis) for axis in np.argwhere(wrong)[0])
        raise VerificationError(
            f"object {weight.target.id} ({', '.join(weight.request.parameter_names)}) holds "
            f"{stored[row, column]} at [{first_row + row}, {column}], its source "
            f"{values[row, column]}"
        )
