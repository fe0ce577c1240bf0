"""Activations in the order in which the linear kernels read them (activation_rows.cuh)."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import address, is_aligned, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.schedule import SKINNY_COLUMNS, WIDE_COLUMNS, x_rows_of
from ninfer_runtime.ops.product_input import PackedActivations, ProductInput

_THREADS = 512

_ALIGNMENT = 128
"""Columns of K that the rows of weights are padded to, or half as many; zeros stand there."""

_FACTOR_BYTES = 4


def most_columns(target: Target) -> int:
    """How many rows of x the kernels that read packed activations take at once."""
    return WIDE_COLUMNS[-1] if target.has_wgmma else SKINNY_COLUMNS


def pack(
    device: CudaDevice, x: Tensor, weight: PackedWeight, *, takes_norms: bool = False
) -> PackedActivations:
    """Rows in the order in which a weight's kernel reads them: what `x` keeps, or packed now.

    Args:
        device: Where `x` lies. Its workspace takes the result, unless `x` keeps it.
        x: [T, K], bf16, T at most `most_columns`.
        weight: What it will be multiplied with.
        takes_norms: Whether the kernel finishes a norm that is not yet done.

    Raises:
        UnsupportedOpError: It does not, and a norm is not yet done.
    """
    bf16 = weight.format == "bf16"
    if not isinstance(x, ProductInput):
        x_rows, factors, end = _layout(x, device.target)
        begin = device.workspace.take(end)
        return _packed(
            device, x, PackedActivations(begin, begin + factors, x.shape[0], x_rows), bf16
        )
    kept = x.bf16 if bf16 else x.f16
    if kept is None:
        kept = _packed(device, x, new_packed(x), bf16)
        if bf16:
            x.bf16 = kept
        else:
            x.f16 = kept
    if kept.norm is not None and not takes_norms:
        raise UnsupportedOpError("linear", "cuda", detail=f"{x!r} with a norm to be finished")
    return kept


def is_packable(x: Tensor) -> bool:
    """Whether a kernel that computes `x` may pack it as well, by whole packs of elements."""
    return (
        isinstance(x, ProductInput)
        and 0 < x.shape[0] <= most_columns(device_of(x).target)
        and x.shape[1] % _ALIGNMENT == 0
        and x.dtype is DType.BF16
        and is_contiguous(x)
    )


def packing_arguments(out: Tensor, *, f16: bool, bf16: bool) -> list[Argument]:
    """What a kernel takes as ``ActivationRows``; `out` keeps what the kernel will write there.

    Args:
        out: The result; `is_packable` unless nothing is wanted.
        f16: Whether f16 is wanted.
        bf16: Whether bf16 words are wanted.
    """
    half = new_packed(out) if f16 else None
    words = new_packed(out) if bf16 else None
    if isinstance(out, ProductInput):
        out.f16, out.bf16 = half, words
    arguments: list[Argument] = []
    for packed in (half, words):
        arguments.append((packed.data if packed else 0, POINTER))
        arguments.append((packed.column_scale if packed else 0, POINTER))
    return arguments + integers(half.x_rows if half else 0)


def new_packed(x: Tensor) -> PackedActivations:
    """Memory of their own for packed activations."""
    x_rows, factors, end = _layout(x, device_of(x).target)
    memory = x.device.empty((end,), DType.UINT8)
    begin = address(memory)
    return PackedActivations(begin, begin + factors, x.shape[0], x_rows, memory)


def pack_kernel(*, bf16: bool) -> Kernel:
    """The kernel that packs activations, to f16 or as they are."""
    return Kernel(
        "ops/linear/activations.cu", f"ninfer::pack_activations_kernel<{str(bf16).lower()}>"
    )


def row_stride(tensor: Tensor) -> int:
    """Elements from one row of a matrix to the next, whose elements follow one another.

    Raises:
        UnsupportedOpError: The elements of a row do not follow one another.
    """
    rows, elements = tensor.array.strides
    size = tensor.array.itemsize
    if elements != size and tensor.shape[1] > 1:
        raise UnsupportedOpError("linear", "cuda", detail=f"strided rows of {tensor!r}")
    return int(rows) // int(size) if tensor.shape[0] > 1 else tensor.shape[1]


def _layout(x: Tensor, target: Target) -> tuple[int, int, int]:
    """Rows in memory, and where the factors of packed activations begin and end."""
    T, K = x.shape
    x_rows = x_rows_of(T, target)
    factors = x_rows * _records(K) * 128
    return x_rows, factors, factors + x_rows * _FACTOR_BYTES


def _records(K: int) -> int:
    return -(-K // _ALIGNMENT) * 2


def _packed(
    device: CudaDevice, x: Tensor, target: PackedActivations, bf16: bool
) -> PackedActivations:
    """Pack x into `target`."""
    T, K = x.shape
    stride = row_stride(x)
    arguments: list[Argument] = [
        pointer(x),
        (target.data, POINTER),
        (target.column_scale, POINTER),
        *integers(T, K),
        *longs(stride),
        *integers(_records(K), target.x_rows, int(is_aligned(x))),
    ]
    geometry = Geometry(target.x_rows, _THREADS, overlap=True)
    device.launch(pack_kernel(bf16=bf16), geometry, arguments)
    return target
