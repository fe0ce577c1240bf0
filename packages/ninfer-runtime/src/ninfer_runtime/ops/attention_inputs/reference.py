"""NumPy meaning of `attention_inputs`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.kv.pages import PAGE_TOKENS, KVPages, RowPlanes
from ninfer_runtime.ops.rms_norm.reference import rms_norm
from ninfer_runtime.ops.rotary.reference import rotary
from ninfer_runtime.ops.rounding import load, store


def attention_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    before: Tensor,
    columns: Tensor,
    out: Tensor,
    *,
    pages: KVPages,
    eps: float,
) -> None:
    """See the contract in the package."""
    queries = _rotated(query, query_weight, cos, sin, eps)
    keys = _rotated(key, key_weight, cos, sin, eps)
    values = load(value)
    for b, (begin, count) in enumerate(
        zip(before.array.tolist(), columns.array.tolist(), strict=True)
    ):
        queries[b, count:] = 0
        positions = np.arange(begin, begin + count)
        page = tables.array[table_rows.array[b]][positions // PAGE_TOKENS]
        place = positions % PAGE_TOKENS
        for planes, rows in ((pages.key, keys[b]), (pages.value, values[b])):
            _append(planes, page, place, rows[:count])
    store(out, queries)


def _rotated(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> np.ndarray:
    """The normalised and rotated heads of `x`, fp32 [B, C, heads, HD], not yet rounded."""
    B, C, heads, HD = x.shape
    rows = Tensor(np.empty((B * C, heads, HD), np.float32), DType.FP32, x.device)
    rms_norm(x.reshape(*rows.shape), weight, rows, eps=eps, unit_offset=True)
    rotary(rows, cos.reshape(B * C, -1), sin.reshape(B * C, -1), rows)
    values: np.ndarray = rows.array
    return values.reshape(x.shape)


def _append(planes: RowPlanes, page: np.ndarray, place: np.ndarray, rows: np.ndarray) -> None:
    """Write rows [N, KH, HD] to token `place` of `page`, each [N]."""
    coded = planes.format.encode(rows)
    for plane, values in zip(planes.tensors, coded, strict=True):
        plane.array[page, :, place] = values
