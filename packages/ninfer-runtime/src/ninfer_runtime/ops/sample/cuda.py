"""Launches of `sample` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, element_strides, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.sample import SamplingRows
from ninfer_runtime.sampling.params import MAX_CANDIDATES

SOURCE = "ops/sample/sample.cu"
THREADS = 256
TILE_TOKENS = 4096
RANK_BYTES = 8
HELD = (1, 5, 16)
"""Candidates of a thread that the merging kernel is made for: the last for 800,000 tokens."""


def candidates_kernel(dtype: DType) -> Kernel:
    """What finds the best tokens of each tile."""
    return Kernel(SOURCE, f"ninfer::sample_candidates_kernel<{ELEMENT_TYPES[dtype]}>")


def draw_kernel(held: int) -> Kernel:
    """What merges the tiles, with so many candidates in a thread."""
    return Kernel(SOURCE, f"ninfer::sample_draw_kernel<{held}>")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [*map(candidates_kernel, ELEMENT_TYPES), *map(draw_kernel, HELD[:2])]


def held_for(tiles: int) -> int | None:
    """The fewest candidates of a thread that take those of all tiles, None if there are too many."""
    return next((held for held in HELD if held * THREADS >= tiles * MAX_CANDIDATES), None)


def sample(logits: Tensor, *tensors: Tensor, public_tokens: int) -> None:
    """See the contract in the package; `tensors` are those of `SamplingRows`, then the output."""
    device = device_of(logits)
    rows, out = SamplingRows(*tensors[:-1]), tensors[-1]
    R, V = logits.shape
    tiles = -(-public_tokens // TILE_TOKENS)
    held = held_for(tiles)
    row_stride, element_stride = element_strides(logits)
    if held is None or element_stride != 1 or not all(map(is_contiguous, tensors)):
        raise UnsupportedOpError("sample", logits.device.kind, detail=f"{logits!r}")
    if R == 0:
        return
    with device.workspace.frame():
        candidates = (device.workspace.take(R * tiles * MAX_CANDIDATES * RANK_BYTES), POINTER)
        broken = (device.workspace.take(R * tiles * 4), POINTER)
        device.launch(
            candidates_kernel(logits.dtype),
            Geometry(R * tiles, THREADS, overlap=True),
            [
                pointer(logits),
                *longs(row_stride),
                *map(pointer, (rows.temperature, rows.top_k)),
                *map(pointer, (rows.presence_penalty, rows.frequency_penalty)),
                *map(pointer, (rows.counts_row, rows.mask_row, rows.counts, rows.masks)),
                candidates,
                broken,
                *integers(V, rows.masks.shape[1], public_tokens, tiles),
            ],
        )
        device.launch(
            draw_kernel(held),
            Geometry(R, THREADS, overlap=True),
            [
                candidates,
                broken,
                *map(pointer, (rows.temperature, rows.top_k, rows.top_p, rows.min_p)),
                *map(pointer, (rows.seed, rows.position, rows.purpose, out)),
                *integers(tiles),
            ],
        )
