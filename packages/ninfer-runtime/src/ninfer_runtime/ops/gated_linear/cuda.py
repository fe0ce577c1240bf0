"""Launches of `gated_linear` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.gated_linear import GatedWeight
from ninfer_runtime.ops.linear import Weight, stacked_linear
from ninfer_runtime.ops.linear.activations import is_packable, most_columns, pack
from ninfer_runtime.ops.linear.cases import GATED_SHAPES
from ninfer_runtime.ops.linear.cuda import UNEVEN_SHAPE, multiply
from ninfer_runtime.ops.linear.epilogue import gated
from ninfer_runtime.ops.linear.library import multiply_decoded
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.packing import TURN
from ninfer_runtime.ops.linear.schedule import (
    SKINNY_COLUMNS,
    WIDE_COLUMNS,
    Result,
    problem_of,
)
from ninfer_runtime.ops.linear.tuning import choose, decodes_first
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS
from ninfer_runtime.ops.swiglu import swiglu


def gated_linear(x: Tensor, weight: GatedWeight, out: Tensor, *, reader: Weight | None) -> None:
    """See the contract in the package.

    As for `linear`, rows are multiplied in turns until it takes less time to decode the weight.
    """
    if not weight.in_turns:
        N = weight.shape[0]
        y = stacked_linear(x, weight.matrices)
        swiglu(y[:, :N], y[:, N:], out=out)
        return
    device, (matrix,) = device_of(x), weight.matrices
    if not isinstance(matrix, PackedWeight) or x.dtype is not DType.BF16:
        raise UnsupportedOpError("gated_linear", "cuda", detail=f"{x!r}, {matrix!r}")
    if decodes_first(matrix.record_format, x.shape[0], device.target):
        _multiply_decoded(device, x, matrix, out)
        return
    T, most = x.shape[0], most_columns(device.target)
    if most >= T:
        _multiply(device, x, matrix, out, reader)
        return
    for begin in range(0, T, most):
        rows = slice(begin, begin + most)
        _multiply(device, x[rows], matrix, out[rows], reader)


def kernels(target: Target) -> set[Kernel]:
    """What models need, in every format and for any number of columns."""
    return {
        choose(problem, target).kernel(record_format, Result.GATED)
        for record_format in RECORD_FORMATS.values()
        for shape in (*GATED_SHAPES, UNEVEN_SHAPE)
        for columns in (1, 4, SKINNY_COLUMNS, *WIDE_COLUMNS)
        if columns <= most_columns(target)
        for problem in [problem_of(record_format, shape, columns)]
    }


def _multiply(
    device: CudaDevice, x: Tensor, matrix: PackedWeight, out: Tensor, reader: Weight | None
) -> None:
    """The product of as many rows as a kernel takes at once."""
    packs = isinstance(reader, PackedWeight) and is_packable(out)
    bf16 = isinstance(reader, PackedWeight) and reader.format == "bf16"
    with device.workspace.frame():
        packed = pack(device, x, matrix, takes_norms=True)
        epilogue = gated(out, f16=packs and not bf16, bf16=packs and bf16)
        multiply(device, packed, matrix, None if packs else out, epilogue=epilogue)


def _multiply_decoded(device: CudaDevice, x: Tensor, matrix: PackedWeight, out: Tensor) -> None:
    T, N = out.shape
    y = device.empty((T, 2 * N), DType.BF16)
    multiply_decoded(device, x, matrix, y)
    turns = y.reshape(T, N // TURN, 2 * TURN)
    swiglu(turns[..., :TURN], turns[..., TURN:], out=out.reshape(T, N // TURN, TURN))
