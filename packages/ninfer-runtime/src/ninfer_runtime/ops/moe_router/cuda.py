"""Launches of `moe_router` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import element_strides, is_aligned, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.cuda import norm_arguments
from ninfer_runtime.ops.moe_router.cases import MODEL_SIZES
from ninfer_runtime.ops.product_input import PackedActivations, ProductInput

SOURCE = "ops/moe_router/moe_router.cu"
WARPS = 8
COLUMN_CHUNK = 32
"""Columns of K that lie together in the order of products."""

ROWS, COLUMNS = 16, 8
MAX_COLUMN_BLOCKS = 16
CHUNKS = (1, 8, 16)
"""Chunks of 32 values of a warp that the kernel is made for: D up to 256, 2048 and 4096."""

HELD = (8, 16)
"""Experts of a lane: E up to 256 and 512."""

MOST_CHOICES = 32
TOKENS_AT_ONCE = 64
"""Up to so many tokens, the blocks that compute the scores choose as well."""

CLUSTER = 8
FEW_WIDTH, FEW_EXPERTS = 2048, 256
FEW_KERNEL = Kernel(SOURCE, "ninfer::moe_route_few_kernel")
"""Where blocks form clusters, it routes few tokens; D and E are at most so large."""


def scores_kernel(chunks: int, held: int) -> Kernel:
    """What multiplies the tokens with the rows of the experts, and chooses if they are few."""
    return Kernel(SOURCE, f"ninfer::moe_scores_kernel<{chunks}, {held}>")


def choice_kernel(held: int) -> Kernel:
    """What chooses for many tokens."""
    return Kernel(SOURCE, f"ninfer::moe_choice_kernel<{held}>")


def kernels(target: Target) -> set[Kernel]:
    """What models need, on any GPU."""
    instances = {_instance(D, E) for D, E, _ in MODEL_SIZES.values()}
    found = {
        kernel
        for instance in instances
        if instance is not None
        for kernel in (scores_kernel(*instance), choice_kernel(instance[1]))
    }
    return found | {FEW_KERNEL} if target.has_clusters else found


def moe_router(
    x: Tensor, weight: Tensor, experts: Tensor, weights: Tensor, shared_weights: Tensor
) -> None:
    """See the contract in the package."""
    (T, D), E, A = x.shape, weight.shape[0] - 1, experts.shape[1]
    instance = _instance(D, E)
    results = (experts, weights, shared_weights)
    words = unfinished_words(x)
    if (
        instance is None
        or D % COLUMNS
        or A > MOST_CHOICES
        or x.dtype is not DType.BF16
        or weight.dtype is not DType.BF16
        or not (words or is_aligned(x))
        or not is_aligned(weight)
        or not all(map(is_contiguous, (weight, *results)))
    ):
        raise UnsupportedOpError("moe_router", "cuda", detail=f"{x!r}, {weight!r}, {A} of {E}")
    if T == 0:
        return
    device = device_of(x)
    rows = [*token_rows(x), *norm_arguments(words.norm if words else None)[:-1]]
    if T <= TOKENS_AT_ONCE and device.target.has_clusters and D <= FEW_WIDTH and E <= FEW_EXPERTS:
        device.launch(
            FEW_KERNEL,
            Geometry(-(-T // COLUMNS) * CLUSTER, 2 * WARPS * 32, cluster=CLUSTER, overlap=True),
            [
                *rows,
                pointer(weight),
                *integers(D, T, E, A),
                *map(pointer, results),
            ],
        )
        return
    tiles = -(-(E + 1) // ROWS)
    pitch = tiles * ROWS
    column_blocks = min(-(-T // COLUMNS), MAX_COLUMN_BLOCKS)
    at_once = T <= TOKENS_AT_ONCE
    with device.workspace.frame():
        choice: list[Argument] = [
            (device.workspace.take(T * pitch * 4), POINTER),
            *integers(pitch, T, E, A),
            *map(pointer, results),
        ]
        device.launch(
            scores_kernel(*instance),
            Geometry(tiles * column_blocks, WARPS * 32, overlap=True),
            [
                *rows,
                pointer(weight),
                *integers(D, tiles, column_blocks, int(at_once)),
                *choice,
            ],
        )
        if not at_once:
            geometry = Geometry(-(-T // WARPS), WARPS * 32, overlap=True)
            device.launch(choice_kernel(instance[1]), geometry, choice)


def unfinished_words(x: Tensor) -> PackedActivations | None:
    """The rows as bf16 in the order of products if their norm is to be finished, else None."""
    words = x.bf16 if isinstance(x, ProductInput) else None
    return words if words and words.norm else None


def token_rows(x: Tensor) -> list[Argument]:
    """Where the rows lie: as bf16 in the order of products if their norm is to be finished."""
    chunk, words = COLUMN_CHUNK, unfinished_words(x)
    if words is None:
        return [pointer(x), *longs(element_strides(x)[0], chunk), *integers(0)]
    return [(words.data, POINTER), *longs(chunk, chunk * words.x_rows), *integers(1)]


def _instance(D: int, E: int) -> tuple[int, int] | None:
    """The smallest instance that takes rows of D values and E experts."""
    chunks = next((each for each in CHUNKS if each * WARPS * 32 >= D), None)
    held = next((each for each in HELD if each * 32 >= E), None)
    return None if chunks is None or held is None else (chunks, held)
