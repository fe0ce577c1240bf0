"""Paged caches for tests: random pages in random order, with poison wherever nobody may look."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device import Device, DType, Tensor
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.kv.pages import PAGE_TOKENS, KVPages, RowPlanes, new_pages
from ninfer_runtime.ops.paged_arguments import Spans

POISON_BYTE = 0xFF
"""Of bf16, fp16 and e4m3 a NaN."""


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
