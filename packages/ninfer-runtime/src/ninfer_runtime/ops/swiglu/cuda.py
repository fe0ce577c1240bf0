"""Launch of `swiglu` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.pointwise import launch_pointwise, pointwise_kernels
from ninfer_runtime.cuda.rows import PACK, is_aligned
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear.activations import is_packable, packing_arguments, row_stride

_MOST_THREADS = 512
_WARP = 32


def kernels(target: Target) -> list[Kernel]:
    """What models need."""
    return [*pointwise_kernels("swiglu"), rows_kernel(target)]


def swiglu(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    target = device_of(out).target
    inputs = (gate, up)
    if (
        is_packable(out)
        and out.shape[1] // PACK <= _blocks(target) * _packs(target) * _MOST_THREADS
        and all(each.dtype is DType.BF16 and is_aligned(each) for each in inputs)
    ):
        _launch_rows(gate, up, out)
    else:
        launch_pointwise("swiglu", gate, up, out)


def rows_kernel(target: Target) -> Kernel:
    """The kernel that makes rows and packs them for the next product."""
    return Kernel(
        "ops/swiglu/swiglu.cu",
        f"ninfer::swiglu_rows_kernel<{_blocks(target)}, {_packs(target)}>",
    )


def _blocks(target: Target) -> int:
    """Blocks that share a row: they exchange its largest element."""
    return 8 if target.has_clusters else 1


def _packs(target: Target) -> int:
    """Packs of a thread."""
    return 1 if target.has_clusters else 5


def _launch_rows(gate: Tensor, up: Tensor, out: Tensor) -> None:
    T, columns = out.shape
    device = device_of(out)
    blocks = _blocks(device.target)
    packs = columns // PACK
    threads = -(-packs // (blocks * _packs(device.target) * _WARP)) * _WARP
    device.launch(
        rows_kernel(device.target),
        Geometry(T * blocks, threads, cluster=blocks, overlap=True),
        [
            pointer(gate),
            *longs(row_stride(gate)),
            pointer(up),
            *longs(row_stride(up)),
            pointer(out),
            *integers(packs),
            *packing_arguments(out, f16=True, bf16=False),
        ],
    )
