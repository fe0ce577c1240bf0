"""Paged caches for tests: random pages in random order, with poison wherever nobody may look.

And attention over them in float64.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ninfer_runtime.device import Device, DType, Tensor
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.kv.pages import PAGE_TOKENS, KVPages, RowPlanes, new_pages
from ninfer_runtime.ops.paged_arguments import Spans

POISON_BYTE = 0xFF
"""Of bf16, fp16 and e4m3 a NaN."""

SCALE = 1 / 16


def tolerance(name: str) -> float:
    """What a result on rows of `draw` may be off, besides the rounding to bf16.

    A weight and a value are rounded to 11 bits. So are the components of transformed queries and, for
    many rows, of keys with their scales, which moves a score by 6e-4 (root of the mean square): six
    times as much is allowed.
    """
    return 2e-3 if name == "bf16" else 4e-3


def poisoned_pages(device: Device, name: str, num_pages: int, key_heads: int) -> KVPages:
    """Pages full of poison."""
    pages = new_pages(KV_FORMATS[name], num_pages, key_heads, device)

    def poisoned(planes: RowPlanes) -> RowPlanes:
        tensors = []
        for tensor in planes.tensors:
            empty = np.empty(tensor.shape, tensor.array.dtype)
            empty.view(np.uint8)[...] = POISON_BYTE
            tensors.append(plane(device, empty, tensor.dtype))
        return RowPlanes(planes.format, *tensors)

    return KVPages(pages.format, poisoned(pages.key), poisoned(pages.value))


def plane(device: Device, array: np.ndarray, dtype: DType) -> Tensor:
    """A tensor of raw elements."""
    return device.from_host(array, dtype)


def random_spans(device: Device, rng: np.random.Generator, case) -> tuple[Spans, int]:
    """Tables with pages in random order for a case, and the number of pages."""
    lengths = [b + c for b, c in zip(case.before, case.valid, strict=True)]
    needed = [-(-length // PAGE_TOKENS) for length in lengths]
    order = rng.permutation(sum(needed) + 2).astype(np.int32)
    width, count = max(1, *needed) + 1, len(needed)
    tables = np.full((count + 1, width), -1, np.int32)
    rows = rng.permutation(count + 1)[:count].astype(np.int32)
    begin = 0
    for row, number in zip(rows, needed, strict=True):
        tables[row, :number] = order[begin : begin + number]
        begin += number
    host = (tables, rows, np.array(case.before, np.int32), np.array(case.valid, np.int32))
    return Spans(*map(device.from_host, host)), sum(needed) + 2


def write_rows(
    device: Device, pages: KVPages, spans: Spans, sequence: int, keys, values
) -> KVPages:
    """Pages in which the first rows of a sequence are coded keys and values [length, KH, 256]."""
    table = device.to_host(spans.tables)[device.to_host(spans.table_rows)[sequence]]
    positions = np.arange(len(keys))
    page, place = table[positions // PAGE_TOKENS], positions % PAGE_TOKENS

    def written(planes: RowPlanes, rows: np.ndarray) -> RowPlanes:
        tensors = []
        for tensor, coded in zip(planes.tensors, planes.format.encode(rows), strict=True):
            array = raw(device, tensor).copy()
            array[page, :, place] = coded
            tensors.append(plane(device, array, tensor.dtype))
        return RowPlanes(planes.format, *tensors)

    return KVPages(pages.format, written(pages.key, keys), written(pages.value, values))


def read_rows(device: Device, planes: RowPlanes, spans: Spans, sequence: int, length: int):
    """What is stored of the first rows of a sequence, [length, KH, ...] for each plane."""
    table = device.to_host(spans.tables)[device.to_host(spans.table_rows)[sequence]]
    positions = np.arange(length)
    page, place = table[positions // PAGE_TOKENS], positions % PAGE_TOKENS
    return tuple(raw(device, tensor)[page, :, place] for tensor in planes.tensors)


def raw(device: Device, tensor: Tensor) -> np.ndarray:
    """The stored elements on the host."""
    elements = Tensor(tensor.array.view(np.uint8), DType.UINT8, device)
    return device.to_host(elements).view(tensor.array.dtype)


def cut_out_of_one(tensor, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Bf16 tensors [B, C, H, 256] as parts of the rows of one matrix, as a projection gives them."""
    B, C = next(iter(arrays.values())).shape[:2]
    foreign = np.full((B, C, 16), np.nan)
    parts = [array.reshape(B, C, -1) for array in arrays.values()]
    whole = tensor(np.concatenate([foreign, *parts, foreign], axis=-1), DType.BF16)
    views, begin = {}, 16
    for name, array in arrays.items():
        width = array[0, 0].size
        views[name] = whole[..., begin : begin + width].reshape(*array.shape)
        begin += width
    return views


def hadamard():
    index = np.arange(256)
    return (-1.0) ** np.bitwise_count(index[:, None] & index) / 16


def bf16(values):
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def oracle(device, case, query, gate, pages, spans, scale=SCALE):
    """Row by row in float64, from decoded pages; transformed rows are first transformed back."""
    rows = np.zeros(query.shape)
    group = case.heads // case.key_heads
    for b, (before, valid) in enumerate(zip(case.before, case.valid, strict=True)):
        sides = []
        for planes in (pages.key, pages.value):
            stored = read_rows(device, planes, spans, b, before + valid)
            decoded = planes.format.codec.decode(*stored).astype(np.float64)
            sides.append(decoded @ hadamard() if planes.format.transformed else decoded)
        keys, values = sides
        for c in range(valid):
            visible = before + c + 1
            for h in range(case.heads):
                scores = scale * keys[:visible, h // group] @ query[b, c, h]
                weights = np.exp(scores - scores.max())
                rows[b, c, h] = weights @ values[:visible, h // group] / weights.sum()
    return rows / (1 + np.exp(-gate))


def draw(device: Device, rng: np.random.Generator, case, name: str):
    """Query and gate (bf16 values), pages and spans of a case."""
    shape = (len(case.before), case.columns, case.heads, 256)
    query, gate = bf16(2 * rng.standard_normal(shape)), bf16(rng.standard_normal(shape))
    spans, num_pages = random_spans(device, rng, case)
    pages = poisoned_pages(device, name, num_pages, case.key_heads)
    for b, (before, valid) in enumerate(zip(case.before, case.valid, strict=True)):
        keys, values = (
            bf16(rng.standard_normal((before + valid, case.key_heads, 256))) for _ in range(2)
        )
        keys[..., 3] *= 8  # an outlier, as real keys have
        pages = write_rows(device, pages, spans, b, keys, values)
    return query, gate, pages, spans
