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
from ninfer_runtime.ops.attention_inputs import AttentionInputs, attention_inputs
from ninfer_runtime.ops.linear.activations import is_packable, packing_arguments
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.paged_attention import decode, prefill
from ninfer_runtime.ops.paged_attention.plan import MOST_SEQUENCES, Plan, partial_bytes

OP = "paged_attention"
MERGED_PIECES = 2
"""Pieces of a row whose segments are merged apart, unless a transform has to be undone."""

MERGE_THREADS = 512
"""Threads for all pieces of a row."""

LANE_COMPONENTS = 8
"""Components of a head in one lane; the pairs of a lane are rotated with those of one other lane."""

LOG2_E = 1.4426950408889634


def choose_plan(
    kv_format: KVFormat, rows: int, num_key_value_heads: int, target: Target
) -> Plan | None:
    """The launch for a number of rows of a sequence and key head; None if no kernel fits."""
    if rows <= decode.MOST_ROWS:
        return decode.decode_plan(kv_format, num_key_value_heads, target)
    return prefill.prefill_plan(kv_format, rows, num_key_value_heads, target)


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
    inputs: AttentionInputs | None = None,
) -> None:
    """See the contract in the package."""
    B, C, H, HD = query.shape
    KH = pages.num_key_value_heads
    spans = Spans(tables, table_rows, before, columns)
    plan = None
    if HD == HEAD_DIM and scale > 0:
        plan = choose_plan(pages.format, C * H // KH, KH, device_of(query).target)
    if (
        plan is None
        or B > MOST_SEQUENCES
        or any(tensor.dtype is not DType.BF16 for tensor in (query, gate, out))
        or not all(map(is_aligned, (query, gate)))
        or not all(map(is_contiguous, (*pages.tensors, *spans.tensors, out)))
    ):
        detail = f"{query!r}, {gate!r}, {out!r}, scale {scale}"
        raise UnsupportedOpError(OP, query.device.kind, detail=detail)
    if not B or not C:
        return
    if inputs is not None and not (plan.takes_heads and _are_for_kernel(inputs)):
        query, inputs = attention_inputs(inputs, pages, spans), None
    launch(plan, query, gate, spans, out, pages, scale, inputs)


def _are_for_kernel(inputs: AttentionInputs) -> bool:
    """Whether the kernel for few rows can make these heads ready."""
    *heads, cos, sin = inputs.tensors
    return (
        cos.shape[2] % LANE_COMPONENTS == 0
        and all(tensor.dtype is DType.BF16 for tensor in heads)
        and all(map(is_aligned, inputs.tensors))
        and all(map(is_contiguous, (cos, sin)))
    )


def launch(
    plan: Plan,
    query: Tensor,
    gate: Tensor,
    spans: Spans,
    out: Tensor,
    pages: KVPages,
    scale: float,
    inputs: AttentionInputs | None = None,
) -> None:
    """Queue the kernels of a plan."""
    device = device_of(query)
    B, C, H, _ = query.shape
    KH = pages.num_key_value_heads
    group = H // KH
    rows = C * group
    row_blocks = -(-rows // plan.rows)
    result = [*strided(gate), pointer(out)]
    blocks = B * KH * row_blocks * plan.segments
    if plan.most_blocks is not None:
        blocks = min(blocks, plan.most_blocks)
    with device.workspace.frame():
        count = 0 if plan.final else B * KH * rows * plan.segments
        weights, sums = map(device.workspace.take, partial_bytes(count))
        partials: list[Argument] = [(sums, POINTER), (weights, POINTER)]
        device.launch(
            plan.kernel,
            Geometry(
                blocks=blocks,
                threads=plan.threads,
                shared_bytes=plan.shared_bytes,
                overlap=True,
            ),
            [
                *strided(query),
                *(head_arguments(inputs) if plan.takes_heads else []),
                *page_arguments(pages),
                pointer(spans.tables),
                *integers(spans.tables.shape[1]),
                *map(pointer, (spans.table_rows, spans.before, spans.columns)),
                *([] if plan.takes_heads else result),
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
            Geometry(blocks=B * KH * rows * pieces, threads=MERGE_THREADS // pieces, overlap=True),
            [
                *partials,
                *result,
                *packing_arguments(out, f16=is_packable(out), bf16=False),
                *map(pointer, (spans.before, spans.columns)),
                *integers(C, KH, group, plan.segments),
            ],
        )


def strided(heads: Tensor) -> list[Argument]:
    """Heads [B, C, H, HD] and how far it is from one sequence, column and head to the next."""
    return [pointer(heads), *longs(*element_strides(heads)[:3])]


def head_arguments(inputs: AttentionInputs | None) -> list[Argument]:
    """What the kernel makes ready besides queries, and with what; nothing if all is."""
    if inputs is None:
        nothing: Argument = (0, POINTER)
        strides = longs(0, 0, 0)
        return [nothing, *strides, nothing, *strides, *[nothing] * 4, *integers(0), *floats(0)]
    constants = (inputs.query_weight, inputs.key_weight, inputs.cos, inputs.sin)
    return [
        *strided(inputs.key),
        *strided(inputs.value),
        *map(pointer, constants),
        *integers(inputs.cos.shape[2]),
        *floats(inputs.eps),
    ]


def page_arguments(pages: KVPages) -> list[Argument]:
    """The four planes of the pages: codes and scales of keys, codes and scales of values."""
    return [
        (0, POINTER) if plane is None else pointer(plane)
        for planes in (pages.key, pages.value)
        for plane in (planes.codes, planes.scales)
    ]
