"""Launch of `gated_delta_net` on an NVIDIA GPU: which way each sequence goes."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.rows import element_strides, is_aligned, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.gated_delta_net import (
    HEAD,
    OP,
    TAPS,
    DeltaInputs,
    DeltaSlots,
    DeltaSteps,
    DeltaWeights,
    chunks,
    recurrence,
)

RECORD_SOURCE = "ops/gated_delta_net/records.cu"
RECORD_THREADS = 256
QUAD_BYTES = 8
"""A lane reads four channels at once."""


def record_kernel() -> Kernel:
    """What records the last tokens of a long call."""
    return Kernel(RECORD_SOURCE, "ninfer::gated_delta_net_record_kernel")


def kernels(target: Target) -> list[Kernel]:
    """What models need, with weights in bf16 or fp32."""
    return [*recurrence.kernels(target), *chunks.kernels(target), record_kernel()]


def gated_delta_net(
    u: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    convolution: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    state: Tensor,
    records: Tensor,
    source: Tensor,
    destination: Tensor,
    position: Tensor,
    replayed: Tensor,
    columns: Tensor,
    committed: Tensor,
    out: Tensor,
    *,
    eps: float,
    settled: bool,
) -> None:
    """See the contract in the package.

    How many new tokens a sequence has decides its way, so that no other sequence shows: below
    `chunks.CHUNK` the recurrence, from there on chunks. Where not all new tokens fit the records
    beside what is read of them, the last ones are recorded by a launch of their own: blocks do not
    wait for each other.
    """
    inputs = DeltaInputs(u, z, a, b)
    weights = DeltaWeights(convolution, a_log, dt_bias, norm)
    slots = DeltaSlots(state, records)
    steps = DeltaSteps(source, destination, position, replayed, columns, committed)
    _check(inputs, weights, slots, steps, out)
    (B, C, _), ring = u.shape, records.shape[1]
    if B == 0 or C == 0:
        return
    has_chunks = C >= chunks.CHUNK
    if has_chunks:
        chunks.run_chunks(device_of(u), inputs, weights, slots, steps, out, eps=eps)
    records_new = not has_chunks and ring >= C + TAPS - 1
    recurrence.run_recurrence(
        inputs,
        weights,
        slots,
        steps,
        out,
        longest=chunks.CHUNK - 1 if has_chunks else C,
        records_new=records_new,
        settled=settled and not has_chunks,
        eps=eps,
    )
    if not records_new:
        _record(inputs, slots, steps, ring if has_chunks else min(C, ring - TAPS + 1))


def _check(
    inputs: DeltaInputs, weights: DeltaWeights, slots: DeltaSlots, steps: DeltaSteps, out: Tensor
) -> None:
    kind = inputs.u.device.kind
    if slots.state.shape[2:] != (HEAD, HEAD) or weights.convolution.shape[0] != TAPS:
        sizes = f"{slots.state!r}, {weights.convolution!r}"
        raise UnsupportedOpError(OP, kind, detail=f"{sizes}: heads of {HEAD}, {TAPS} taps only")
    C = inputs.u.shape[1]
    for tensor in inputs.tensors:
        strides = element_strides(tensor)
        rows = C * recurrence.token_stride(tensor)
        if tensor.dtype is not DType.BF16 or strides[2] != 1 or strides[0] != rows:
            raise UnsupportedOpError(OP, kind, detail=f"{tensor!r}, strides {strides}")
    if not (is_aligned(inputs.u, QUAD_BYTES) and is_aligned(inputs.z)):
        raise UnsupportedOpError(OP, kind, detail=f"{inputs.u!r}, {inputs.z!r}: not aligned")
    if not (is_aligned(weights.convolution) and is_aligned(weights.norm)):
        raise UnsupportedOpError(OP, kind, detail="convolution or norm is not aligned")
    whole = (*weights.tensors, slots.state, slots.records, *steps.tensors, out)
    if not all(map(is_contiguous, whole)) or out.dtype is not DType.BF16:
        raise UnsupportedOpError(OP, kind, detail=f"{slots.records!r}, {out!r}")


def _record(inputs: DeltaInputs, slots: DeltaSlots, steps: DeltaSteps, recorded: int) -> None:
    B, C, CH = inputs.u.shape
    VH, ring = inputs.a.shape[2], slots.records.shape[1]
    parts = -(-(CH + 2 * VH) // RECORD_THREADS)
    places = (steps.source, steps.destination, steps.position, steps.replayed, steps.columns)
    device_of(inputs.u).launch(
        record_kernel(),
        Geometry(B * recorded * parts, RECORD_THREADS, overlap=True),
        [
            *recurrence.projections(inputs),
            *map(pointer, (slots.records, *places)),
            *integers(C, recorded, CH, VH, ring),
        ],
    )
