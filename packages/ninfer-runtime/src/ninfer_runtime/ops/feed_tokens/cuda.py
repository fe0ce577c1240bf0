"""Launch of `feed_tokens` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.rows import is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.feed_tokens import OP

KERNEL = Kernel("ops/feed_tokens/feed_tokens.cu", "ninfer::feed_tokens_kernel")
THREADS = 256


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [KERNEL]


def feed_tokens(token_ids: Tensor, sampled: Tensor, counts: Tensor, counts_row: Tensor) -> None:
    """See the contract in the package."""
    tensors = (token_ids, sampled, counts, counts_row)
    if not all(map(is_contiguous, tensors)):
        raise UnsupportedOpError(OP, token_ids.device.kind, detail=f"{token_ids!r} is strided")
    B, C = token_ids.shape
    if B * C == 0:
        return
    device_of(token_ids).launch(
        KERNEL,
        Geometry(1, THREADS, overlap=True),
        [*map(pointer, tensors), *integers(B * C, C, counts.shape[1])],
    )
