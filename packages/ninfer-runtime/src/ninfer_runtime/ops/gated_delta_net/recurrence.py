"""Launch of `gated_delta_net` token by token: the way of sequences with few new ones."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, floats, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Argument, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, element_strides
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.gated_delta_net import (
    HEAD,
    DeltaInputs,
    DeltaSlots,
    DeltaSteps,
    DeltaWeights,
)
from ninfer_runtime.ops.linear.activations import is_packable, packing_arguments

SOURCE = "ops/gated_delta_net/gated_delta_net.cu"
THREADS = 256
TOKEN_CHUNK, LONG_CHUNK = 4, 16
"""Tokens that are in shared memory at once: few where sequences have one, so that an SM has three
blocks."""


FEW_TASKS, SOME_TASKS = 96, 192
"""Heads of all sequences up to which four or two blocks share a head: measured on an H200, and four
are taken on Hopper alone, where they have few enough registers to start beside products."""


def choose_strips(target: Target, tasks: int) -> int:
    """Blocks that share a head, a cluster.

    Args:
        target: Kind of GPU.
        tasks: Heads of all sequences.
    """
    if not target.has_clusters or tasks > SOME_TASKS:
        return 1
    return 4 if target.has_wgmma and tasks <= FEW_TASKS else 2


def shared_bytes(strips: int, chunk: int) -> int:
    """Dynamic shared memory of a block: rows of the state, then vectors and gates of the tokens."""
    rows = HEAD // strips
    return 4 * (rows * HEAD + chunk * (2 * HEAD + 2 * rows))


def kernel(strips: int, weight_dtype: DType) -> Kernel:
    """The instance for a number of strips and the dtype of convolution and norm."""
    name = f"ninfer::gated_delta_net_kernel<{strips}, {ELEMENT_TYPES[weight_dtype]}>"
    return Kernel(SOURCE, name)


def kernels(target: Target) -> list[Kernel]:
    """What models need, with weights in bf16 or fp32."""
    strips = {choose_strips(target, tasks) for tasks in (FEW_TASKS, SOME_TASKS, SOME_TASKS + 1)}
    return [kernel(each, dtype) for each in strips for dtype in ELEMENT_TYPES]


def token_stride(tensor: Tensor) -> int:
    """Elements from one token to the next; an axis of one element may say anything."""
    sequence, token, _ = element_strides(tensor)
    return sequence if tensor.shape[1] == 1 else token


def projections(inputs: DeltaInputs) -> list[Argument]:
    """The inputs but for the output gate, each with the distance of its tokens."""
    return [
        argument
        for tensor in (inputs.u, inputs.a, inputs.b)
        for argument in (pointer(tensor), *longs(token_stride(tensor)))
    ]


def run_recurrence(
    inputs: DeltaInputs,
    weights: DeltaWeights,
    slots: DeltaSlots,
    steps: DeltaSteps,
    out: Tensor,
    *,
    longest: int,
    records_new: bool,
    settled: bool,
    eps: float,
) -> None:
    """Queue the recurrence.

    Args:
        inputs: Of the call, as the other tensors.
        weights: Of the layer.
        slots: Changed in place.
        steps: Of the sequences.
        out: Result.
        longest: Sequences with more new tokens are left.
        records_new: Whether the new tokens are recorded.
        settled: As for the op.
        eps: Of the norm.
    """
    device = device_of(inputs.u)
    B, C, CH = inputs.u.shape
    VH, ring = inputs.a.shape[2], slots.records.shape[1]
    tasks = B * VH
    strips = choose_strips(device.target, tasks)
    chunk = TOKEN_CHUNK if C == 1 else LONG_CHUNK
    packs = longest == C and is_packable(out)
    device.launch(
        kernel(strips, weights.norm.dtype),
        Geometry(
            tasks * strips, THREADS, shared_bytes(strips, chunk), cluster=strips, overlap=True
        ),
        [
            *projections(inputs),
            pointer(inputs.z),
            *longs(token_stride(inputs.z)),
            *map(pointer, (*weights.tensors, slots.state, slots.records, *steps.tensors, out)),
            *packing_arguments(out, f16=packs, bf16=packs),
            *integers(C, longest, (CH // HEAD - VH) // 2, VH, ring, int(records_new)),
            *integers(chunk, int(settled)),
            *floats(eps),
        ],
    )
