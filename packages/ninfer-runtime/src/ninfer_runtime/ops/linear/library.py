"""Products with many columns: every weight is decoded once, and cuBLAS multiplies."""

from __future__ import annotations

import ctypes
from typing import Any

from ninfer_runtime.cuda.arguments import integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import address
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import DeviceError, UnsupportedOpError
from ninfer_runtime.ops.linear.activations import row_stride
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import COLUMNS, ROWS, RecordFormat

SCRATCH_BYTES = 192 * 2**20
"""Decoded weights at a time: any matrix of a dense 27B model in at most two parts, but the head."""

LIBRARY = Kernel("ops/linear/library.py", "cublasGemmEx")
"""What a profile calls the products of cuBLAS."""

_WARPS = 8
_BF16_BYTES = 2
_CUDA_R_32F, _CUDA_R_16BF = 0, 14
_NO_REDUCED_PRECISION = 16
"""CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: parts of K are added in float32 as well."""

_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)


def multiply_decoded(device: CudaDevice, x: Tensor, weight: PackedWeight, out: Tensor) -> None:
    """Multiply rows with a weight whose values are rounded to bf16 first.

    Args:
        device: Where everything lies.
        x: [T, K], bf16.
        weight: [N, K].
        out: [T, N], fp32 or bf16.

    Raises:
        UnsupportedOpError: A graph is being captured: cuBLAS takes memory of its own.
        DeviceError: cuBLAS is not installed.
    """
    if device.xp.cuda.runtime.streamIsCapturing(device.stream.handle):
        raise UnsupportedOpError(
            "linear", "cuda", detail=f"{x.shape[0]} columns while a graph is captured"
        )
    N = weight.shape[0]
    tiles, records, _ = weight.data.shape
    tile_bytes = ROWS * records * COLUMNS * _BF16_BYTES
    parts = -(-tiles * tile_bytes // SCRATCH_BYTES)
    step = -(-tiles // parts)
    scratch = device.empty((step * ROWS, records * COLUMNS), DType.BF16)
    for begin in range(0, tiles, step):
        end = min(begin + step, tiles)
        _dequantize(device, weight, begin, end, scratch)
        rows = slice(begin * ROWS, min(end * ROWS, N))
        _multiply(device, x, scratch[: rows.stop - rows.start], out[:, rows])


def dequantize_kernel(record_format: RecordFormat) -> Kernel:
    """The kernel that decodes records to rows of bf16."""
    return Kernel("ops/linear/dequantize.cu", f"ninfer::dequantize_kernel<{record_format.number}>")


def _cublas(device: CudaDevice) -> Any:
    try:
        return device.xp.cuda.cublas
    except ImportError as error:
        raise DeviceError(
            f"cuBLAS cannot be loaded: {error}",
            hint="install ninfer-runtime with the extra cuda13 or cuda12, or use the cpu backend",
        ) from error


def _dequantize(
    device: CudaDevice, weight: PackedWeight, begin: int, end: int, scratch: Tensor
) -> None:
    """Decode row tiles `begin` to `end` into the first rows of `scratch`."""
    records = weight.data.shape[1]
    count = (end - begin) * records
    row_scale = weight.row_scale
    arguments: list[Argument] = [
        (weight.data[begin:end].data.ptr, POINTER),
        (0 if row_scale is None else row_scale[begin * ROWS :].data.ptr, POINTER),
        pointer(scratch),
        *integers(weight.shape[0] - begin * ROWS, records, count),
    ]
    geometry = Geometry(-(-count // _WARPS), _WARPS * 32, overlap=True)
    device.launch(dequantize_kernel(weight.record_format), geometry, arguments)


def _multiply(device: CudaDevice, x: Tensor, rows: Tensor, out: Tensor) -> None:
    """``out = x · rowsᵀ``; cuBLAS thinks in columns, so that it is told the transposed product."""
    device.announce(LIBRARY)
    cublas = _cublas(device)
    T, K = x.shape
    with device.on_stream():
        handle = device.xp.cuda.device.get_cublas_handle()
        cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH | _NO_REDUCED_PRECISION)
        cublas.gemmEx(
            handle,
            cublas.CUBLAS_OP_T,
            cublas.CUBLAS_OP_N,
            rows.shape[0],
            T,
            K,
            ctypes.addressof(_ONE),
            address(rows),
            _CUDA_R_16BF,
            rows.shape[1],
            address(x),
            _CUDA_R_16BF,
            row_stride(x),
            ctypes.addressof(_ZERO),
            address(out),
            _CUDA_R_32F if out.dtype is DType.FP32 else _CUDA_R_16BF,
            row_stride(out),
            cublas.CUBLAS_COMPUTE_32F,
            cublas.CUBLAS_GEMM_DEFAULT,
        )
