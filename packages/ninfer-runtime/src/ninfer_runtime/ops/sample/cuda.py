"""Launches of `sample` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, element_strides, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.sample import SamplingRows
from ninfer_runtime.sampling.params import MAX_CANDIDATES

SOURCE = "ops/sample/sample.cu"
TILE_TOKENS, TILE_THREADS = 1024, 128
ROW_THREADS = 1024
MAX_TILES = 1024
RANK_BYTES = 8
ROOM_BYTES = 24 * 2**20
"""Room for the candidates of the rows that are sampled together: 128 at least."""


def tiles_kernel(dtype: DType) -> Kernel:
    """What finds the best token of each tile."""
    return Kernel(SOURCE, f"ninfer::sample_tiles_kernel<{ELEMENT_TYPES[dtype]}>")


def rows_kernel(dtype: DType) -> Kernel:
    """What draws for each row."""
    return Kernel(SOURCE, f"ninfer::sample_rows_kernel<{ELEMENT_TYPES[dtype]}>")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [kernel(dtype) for dtype in ELEMENT_TYPES for kernel in (tiles_kernel, rows_kernel)]


def sample(logits: Tensor, *tensors: Tensor, public_tokens: int) -> None:
    """See the contract in the package; `tensors` are those of `SamplingRows`, then the output."""
    device = device_of(logits)
    rows, out = SamplingRows(*tensors[:-1]), tensors[-1]
    R, V = logits.shape
    tiles = -(-public_tokens // TILE_TOKENS)
    row_stride, element_stride = element_strides(logits)
    if tiles > MAX_TILES or element_stride != 1 or not all(map(is_contiguous, tensors)):
        raise UnsupportedOpError("sample", logits.device.kind, detail=f"{logits!r}")
    matrix: list[Argument] = [pointer(logits), *longs(row_stride)]
    cuts = (rows.temperature, rows.top_k, rows.top_p, rows.min_p)
    penalties = (rows.presence_penalty, rows.frequency_penalty)
    random = (rows.seed, rows.position, rows.purpose)
    state = (rows.counts_row, rows.mask_row, rows.counts, rows.masks)
    room = min(tiles, MAX_CANDIDATES) * TILE_TOKENS
    most = ROOM_BYTES // (room * RANK_BYTES)
    for first in range(0, R, most):
        count = min(most, R - first)
        sizes = integers(V, rows.masks.shape[1], public_tokens, tiles, first)
        with device.workspace.frame():
            best = (device.workspace.take(count * tiles * RANK_BYTES), POINTER)
            found = (device.workspace.take(count * room * RANK_BYTES), POINTER)
            device.launch(
                tiles_kernel(logits.dtype),
                Geometry(count * tiles, TILE_THREADS, overlap=True),
                [*matrix, *map(pointer, (*penalties, *state)), best, *sizes],
            )
            device.launch(
                rows_kernel(logits.dtype),
                Geometry(count, ROW_THREADS, overlap=True),
                [
                    *matrix,
                    *map(pointer, (*cuts, *penalties, *random, *state)),
                    *(best, found, pointer(out)),
                    *sizes,
                    *integers(room),
                ],
            )
