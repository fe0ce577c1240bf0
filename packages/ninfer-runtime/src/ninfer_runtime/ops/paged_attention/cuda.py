"""Launch of `paged_attention` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, floats, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import element_strides, is_aligned, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.kv.formats import KV_FORMATS, KVFormat
from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.kv.row_codecs import HEAD_DIM
from ninfer_runtime.ops.paged_attention import decode, prefill
from ninfer_runtime.ops.paged_attention.plan import MOST_SEQUENCES, Plan, partial_bytes

OP = "paged_attention"
MERGE_THREADS = 256
MERGED_PIECES = 4
"""Pieces of a row whose segments are merged apart, unless a transform has to be undone."""

LOG2_E = 1.4426950408889634


def choose_plan(
    kv_format: KVFormat, rows: int, num_key_value_heads: int, target: Target
) -> Plan | None:
    """The launch for a number of rows of a sequence and key head; None if no kernel fits."""
    few = rows <= decode.most_rows(target)
    plan_for = decode.decode_plan if few else prefill.prefill_plan
    return plan_for(kv_format, rows, num_key_value_heads, target)


def merge_kernel(kv_format: KVFormat) -> Kernel:
    """The instance that merges segments."""
    transformed = str(kv_format.value.transformed).lower()
    return Kernel(
        "ops/paged_attention/merge.cu", f"ninfer::paged_attention_merge_kernel<{transformed}>"
    )


def kernels(target: Target) -> list[Kernel]:
    """What models need: every format, for few and for many rows."""
    found: list[Kernel] = []
    for kv_format in KV_FORMATS.values():
        found += decode.decode_kernels(kv_format, target)
        found += prefill.prefill_kernels(kv_format, target)
        found.append(merge_kernel(kv_format))
    return list(dict.fromkeys(found))


def paged_attention(
    query: Tensor,
    gate: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    before: Tensor,
    columns: Tensor,
    out: Tensor,
    *,
    pages: KVPages,
    scale: float,
) -> None:
    """See the contract in the package."""
    B, C, H, HD = query.shape
    KH = pages.num_key_value_heads
    spans = (tables, table_rows, before, columns)
    plan = None
    if HD == HEAD_DIM and scale > 0:
        plan = choose_plan(pages.format, C * H // KH, KH, device_of(query).target)
    if (
        plan is None
        or B > MOST_SEQUENCES
        or any(tensor.dtype is not DType.BF16 for tensor in (query, gate, out))
        or not all(map(is_aligned, (query, gate)))
        or not all(map(is_contiguous, (*pages.tensors, *spans, out)))
    ):
        detail = f"{query!r}, {gate!r}, {out!r}, scale {scale}"
        raise UnsupportedOpError(OP, query.device.kind, detail=detail)
    if B and C:
        launch(plan, query, gate, spans, out, pages, scale)


def launch(
    plan: Plan,
    query: Tensor,
    gate: Tensor,
    spans: tuple[Tensor, Tensor, Tensor, Tensor],
    out: Tensor,
    pages: KVPages,
    scale: float,
) -> None:
    """Queue the kernels of a plan."""
    device, (tables, table_rows, before, columns) = device_of(query), spans
    B, C, H, _ = query.shape
    KH = pages.num_key_value_heads
    group = H // KH
    rows = C * group
    row_blocks = -(-rows // plan.rows)
    gate_arguments = [pointer(gate), *longs(*element_strides(gate)[:3])]
    result = [*gate_arguments, pointer(out)]
    blocks = B * KH * row_blocks * plan.segments
    if plan.most_blocks is not None:
        blocks = min(blocks, plan.most_blocks)
    with device.workspace.frame():
        count = 0 if plan.final else B * KH * rows * plan.segments
        weights, sums = map(device.workspace.take, partial_bytes(count))
        partials = [(sums, POINTER), (weights, POINTER)]
        device.launch(
            plan.kernel,
            Geometry(
                blocks=blocks,
                threads=plan.threads,
                shared_bytes=plan.shared_bytes,
                overlap=True,
            ),
            [
                pointer(query),
                *longs(*element_strides(query)[:3]),
                *page_arguments(pages),
                pointer(tables),
                *integers(tables.shape[1]),
                *map(pointer, (table_rows, before, columns)),
                *(result if plan.takes_result else []),
                *partials,
                *integers(B, C, KH, group, row_blocks, plan.segments),
                *floats(scale * LOG2_E),
            ],
        )
        if plan.final:
            return
        pieces = 1 if pages.format.value.transformed else MERGED_PIECES
        device.launch(
            merge_kernel(pages.format),
            Geometry(blocks=B * KH * rows * pieces, threads=MERGE_THREADS, overlap=True),
            [
                *partials,
                *result,
                *map(pointer, (before, columns)),
                *integers(C, KH, group, plan.segments),
            ],
        )


def page_arguments(pages: KVPages) -> list[Argument]:
    """The four planes of the pages: codes and scales of keys, codes and scales of values."""
    return [
        (0, POINTER) if plane is None else pointer(plane)
        for planes in (pages.key, pages.value)
        for plane in (planes.codes, planes.scales)
    ]
