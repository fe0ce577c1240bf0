"""Launches of `sample` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import element_strides, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.sample import SamplingRows

SOURCE = "ops/sample/sample.cu"
TILE_TOKENS, WARP_THREADS = 256, 32
TILES_THREADS, ROW_THREADS = 256, 1024
MAX_TILES = ROW_THREADS
RANK_BYTES = 8

TILES_KERNEL = Kernel(SOURCE, "ninfer::sample_tiles_kernel")
ROWS_KERNEL = Kernel(SOURCE, "ninfer::sample_rows_kernel")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [TILES_KERNEL, ROWS_KERNEL]


def sample(logits: Tensor, *tensors: Tensor, public_tokens: int) -> None:
    """See the contract in the package; `tensors` are those of `SamplingRows`, then the output."""
    device = device_of(logits)
    rows, out = SamplingRows(*tensors[:-1]), tensors[-1]
    R, V = logits.shape
    tiles = -(-public_tokens // TILE_TOKENS)
    row_stride, element_stride = element_strides(logits)
    if tiles > MAX_TILES:
        most = MAX_TILES * TILE_TOKENS
        raise UnsupportedOpError(
            "sample", logits.device.kind, detail=f"{public_tokens} tokens, at most {most}"
        )
    if element_stride != 1 or not all(map(is_contiguous, tensors)):
        raise UnsupportedOpError("sample", logits.device.kind, detail=f"{logits!r}: strided")
    if R == 0:
        return
    matrix: list[Argument] = [pointer(logits), *longs(row_stride)]
    cuts = (rows.temperature, rows.top_k, rows.top_p, rows.min_p)
    penalties = (rows.presence_penalty, rows.frequency_penalty)
    random = (rows.seed, rows.position, rows.purpose)
    state = (rows.counts_row, rows.mask_row, rows.counts, rows.masks)
    results = (out, rows.returned_place, rows.returned)
    sizes = integers(V, rows.masks.shape[1], public_tokens, tiles)
    with device.workspace.frame():
        best = (device.workspace.take(R * tiles * RANK_BYTES), POINTER)
        device.launch(
            TILES_KERNEL,
            Geometry(-(-R * tiles * WARP_THREADS // TILES_THREADS), TILES_THREADS, overlap=True),
            [*matrix, *map(pointer, (*penalties, *state)), best, *sizes, *integers(R)],
        )
        device.launch(
            ROWS_KERNEL,
            Geometry(R, ROW_THREADS, overlap=True),
            [
                *matrix,
                *map(pointer, (*cuts, *penalties, *random, *state)),
                best,
                *map(pointer, results),
                *sizes,
            ],
        )
