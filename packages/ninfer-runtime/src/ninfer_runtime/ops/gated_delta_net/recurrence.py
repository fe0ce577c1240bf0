"""Launch of `gated_delta_net` token by token: the way of sequences with few new ones."""

from __future__ import annotations

from dataclasses import dataclass

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

SOURCE = "ops/gated_delta_net/gated_delta_net.cu"
HEADS_SOURCE = "ops/gated_delta_net/whole_heads.cu"
STATE_BYTES = HEAD * HEAD * 4


@dataclass(frozen=True, slots=True)
class Variant:
    """How a head is shared out.

    Attributes:
        strips: Blocks of a head, a cluster.
        lanes: Lanes that hold a row of the state.
        chunk: Tokens that are in shared memory at once.
    """

    strips: int
    lanes: int
    chunk: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return HEAD * self.lanes // self.strips


SHORT_COLUMNS = 4
"""New tokens up to which a short chunk is faster: it is less code to fetch for one use of it."""

LONG_COLUMNS = 16

HEADS_THREADS = 512
MOST_TASKS = 16
"""Heads that a block takes one after the other at most; as in whole_heads.cu."""

LEAST_TASKS = 96
"""Heads of all sequences from which on blocks that take whole heads are faster."""


def chunk_of(columns: int) -> int:
    """Tokens that are in shared memory at once for a number of new tokens."""
    return SHORT_COLUMNS if columns <= SHORT_COLUMNS else LONG_COLUMNS


def choose_variant(target: Target, columns: int) -> Variant:
    """A cluster for each head where there are clusters, else one block with all of the state.

    Args:
        target: Kind of GPU.
        columns: New tokens of a sequence at most.
    """
    if not target.has_clusters:
        return Variant(strips=1, lanes=4, chunk=2)
    return Variant(strips=4, lanes=8, chunk=chunk_of(columns))


def choose_stages(target: Target, chunk: int) -> int:
    """States that a block with whole heads holds at once; 0 where there are no bulk copies.

    Args:
        target: Kind of GPU.
        chunk: Tokens that are in shared memory at once, as four vectors.
    """
    if not target.has_clusters:
        return 0
    other_bytes = 4 * chunk * HEAD * 4 + HEAD * 4 + 8 * chunk + MOST_TASKS * 88 + 256
    return min(3, (target.shared_bytes - other_bytes) // STATE_BYTES)


def kernel(variant: Variant, weight_dtype: DType) -> Kernel:
    """The instance for a variant and the dtype of convolution and norm."""
    numbers = f"{variant.strips}, {variant.lanes}, {variant.chunk}"
    name = f"ninfer::gated_delta_net_kernel<{numbers}, {ELEMENT_TYPES[weight_dtype]}>"
    return Kernel(SOURCE, name)


def heads_kernel(stages: int, chunk: int, weight_dtype: DType) -> Kernel:
    """The instance that takes whole heads."""
    name = f"ninfer::gated_delta_net_heads_kernel<{stages}, {chunk}, {ELEMENT_TYPES[weight_dtype]}>"
    return Kernel(HEADS_SOURCE, name)


def kernels(target: Target) -> list[Kernel]:
    """What models need, with weights in bf16 or fp32."""
    variants = {choose_variant(target, columns) for columns in (1, LONG_COLUMNS)}
    heads = [(choose_stages(target, chunk), chunk) for chunk in (SHORT_COLUMNS, LONG_COLUMNS)]
    return [
        *(kernel(variant, dtype) for variant in variants for dtype in ELEMENT_TYPES),
        *(
            heads_kernel(stages, chunk, dtype)
            for stages, chunk in heads
            if stages
            for dtype in ELEMENT_TYPES
        ),
    ]


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
        eps: Of the norm.
    """
    device = device_of(inputs.u)
    B, C, CH = inputs.u.shape
    VH, ring = inputs.a.shape[2], slots.records.shape[1]
    arguments = [
        *projections(inputs),
        pointer(inputs.z),
        *longs(token_stride(inputs.z)),
        *map(pointer, (*weights.tensors, slots.state, slots.records, *steps.tensors, out)),
    ]
    counts = ((CH // HEAD - VH) // 2, VH, ring, int(records_new))
    tasks, chunk = B * VH, chunk_of(C)
    stages = choose_stages(device.target, chunk)
    turns = -(-tasks // device.target.multiprocessors)
    if stages and longest == C and tasks >= LEAST_TASKS and turns <= MOST_TASKS:
        device.launch(
            heads_kernel(stages, chunk, weights.norm.dtype),
            Geometry(-(-tasks // turns), HEADS_THREADS, stages * STATE_BYTES, overlap=True),
            [*arguments, *integers(C, *counts), *floats(eps), *integers(tasks)],
        )
        return
    variant = choose_variant(device.target, longest)
    strips = variant.strips
    device.launch(
        kernel(variant, weights.norm.dtype),
        Geometry(tasks * strips, variant.threads, cluster=strips, overlap=True),
        [*arguments, *integers(C, longest, *counts), *floats(eps)],
    )
