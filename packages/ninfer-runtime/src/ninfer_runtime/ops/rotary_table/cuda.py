"""Launch of `rotary_table` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import DOUBLE, WORD, Geometry
from ninfer_runtime.cuda.rows import is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError

THREADS = 128
WORD_PAIRS = 32
"""Pairs whose axes fit a word of 64 bits."""


def kernel() -> Kernel:
    """The only instance."""
    return Kernel("ops/rotary_table/rotary_table.cu", "ninfer::rotary_table_kernel")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [kernel()]


def axis_words(axes: tuple[int, ...]) -> tuple[int, int]:
    """The axes of at most 64 pairs, two bits each, in two words of 64 bits."""
    first, second = axes[:WORD_PAIRS], axes[WORD_PAIRS:]
    low, high = (
        sum(axis << 2 * place for place, axis in enumerate(part)) for part in (first, second)
    )
    return low, high


def rotary_table(
    positions: Tensor, cos: Tensor, sin: Tensor, *, theta: float, axes: tuple[int, ...]
) -> None:
    """See the contract in the package."""
    T, pairs = cos.shape
    if pairs > 2 * WORD_PAIRS or not is_contiguous(positions):
        raise UnsupportedOpError(
            "rotary_table", positions.device.kind, detail=f"{pairs} pairs, {positions!r}"
        )
    if T == 0:
        return
    device_of(positions).launch(
        kernel(),
        Geometry(blocks=-(-T * pairs // THREADS), threads=THREADS, overlap=True),
        [
            pointer(positions),
            pointer(cos),
            pointer(sin),
            *integers(T, pairs),
            (theta, DOUBLE),
            *((word, WORD) for word in axis_words(axes)),
        ],
    )
