"""Launch of `attention_inputs` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, floats, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.rows import (
    ELEMENT_TYPES,
    is_aligned,
    is_contiguous,
)
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.kv.formats import KV_FORMATS, KVFormat
from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.kv.row_codecs import HEAD_DIM
from ninfer_runtime.ops.paged_attention.cuda import LANE_COMPONENTS, page_arguments, strided

OP = "attention_inputs"
WARPS = 4


def kernel(kv_format: KVFormat, dtypes: tuple[DType, ...]) -> Kernel:
    """The instance for a format and the dtypes of the heads, the weights and the result."""
    types = ", ".join(ELEMENT_TYPES[dtype] for dtype in dtypes)
    codecs = f"{kv_format.key.codec.number}, {kv_format.value.codec.number}"
    name = f"ninfer::attention_inputs_kernel<{codecs}, {types}>"
    return Kernel("ops/attention_inputs/attention_inputs.cu", name)


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [kernel(each, (DType.BF16,) * 3) for each in KV_FORMATS.values()]


def attention_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    before: Tensor,
    columns: Tensor,
    out: Tensor,
    *,
    pages: KVPages,
    eps: float,
) -> None:
    """See the contract in the package."""
    heads = (query, key, value)
    B, C, H, HD = query.shape
    R = cos.shape[2]
    if (
        HD != HEAD_DIM
        or R % LANE_COMPONENTS
        or not all(map(is_aligned, (*heads, query_weight, key_weight, cos, sin)))
        or len({tensor.dtype for tensor in heads}) > 1
        or query_weight.dtype is not key_weight.dtype
        or not all(map(is_contiguous, (cos, sin, *pages.tensors)))
        or not all(map(is_contiguous, (tables, table_rows, before, columns, out)))
    ):
        raise UnsupportedOpError(OP, query.device.kind, detail=f"{query!r}, {out!r}, {R} pairs")
    KH = pages.num_key_value_heads
    warps = B * C * (H + 2 * KH)
    if warps == 0:
        return
    device_of(query).launch(
        kernel(pages.format, (query.dtype, query_weight.dtype, out.dtype)),
        Geometry(blocks=-(-warps // WARPS), threads=32 * WARPS, overlap=True),
        [
            *(argument for tensor in heads for argument in strided(tensor)),
            pointer(query_weight),
            pointer(key_weight),
            pointer(cos),
            pointer(sin),
            pointer(tables),
            pointer(table_rows),
            pointer(before),
            pointer(columns),
            pointer(out),
            *page_arguments(pages),
            *integers(B, C, H, KH, tables.shape[1], R),
            *floats(eps),
        ],
    )
