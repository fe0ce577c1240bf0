"""NumPy meaning of `paged_attention`: one sequence after the other, by `attention`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.kv.hadamard import transform_rows
from ninfer_runtime.kv.pages import PAGE_TOKENS, KVPages, RowPlanes
from ninfer_runtime.ops.activations import sigmoid
from ninfer_runtime.ops.attention.reference import attention
from ninfer_runtime.ops.attention_inputs import AttentionInputs, attention_inputs
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.rounding import load, store


def paged_attention(
    query: Tensor,
    gate: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    before: Tensor,
    columns: Tensor,
    out: Tensor,
    *,
    pages: KVPages,
    scale: float,
    inputs: AttentionInputs | None = None,
) -> None:
    """See the contract in the package."""
    if inputs is not None:
        query = attention_inputs(inputs, pages, Spans(tables, table_rows, before, columns))
    queries = load(query)
    if pages.key.format.transformed:
        queries = transform_rows(queries)
    rows = np.zeros(query.shape, np.float32)
    for b in range(query.shape[0]):
        count = int(columns.array[b])
        if count == 0:
            continue
        table = tables.array[table_rows.array[b]]
        length = int(before.array[b]) + count
        chosen = _neighbours(table[: -(-length // PAGE_TOKENS)])
        key, value = (_read_rows(each, chosen, length) for each in (pages.key, pages.value))
        own = Tensor(rows[b, :count], DType.FP32, query.device)
        taken = Tensor(queries[b, :count], DType.FP32, query.device)
        attention(taken, key, value, own, scale=scale)
    if pages.value.format.transformed:
        rows = transform_rows(rows)
    rows *= sigmoid(load(gate))
    store(out, rows.reshape(out.shape))


def _read_rows(planes: RowPlanes, chosen: slice | np.ndarray, length: int) -> Tensor:
    """The first `length` rows of a sequence that has these pages, fp32 [length, KH, HD]."""

    def gather(plane: Tensor) -> np.ndarray:
        # [pages, KH, 64, X] -> [pages · 64, KH, X]: a view of neighbours with a single head.
        array: np.ndarray = plane.array[chosen].transpose(0, 2, 1, 3)
        return array.reshape(-1, *array.shape[2:])[:length]

    values = planes.format.codec.decode(*map(gather, planes.tensors))
    return Tensor(values, DType.FP32, planes.codes.device)


def _neighbours(used: np.ndarray) -> slice | np.ndarray:
    """Page numbers as a slice if they follow each other, as those of a lone sequence mostly do."""
    numbers = used.tolist()
    begin, end = numbers[0], numbers[0] + len(numbers)
    return slice(begin, end) if numbers == list(range(begin, end)) else used
