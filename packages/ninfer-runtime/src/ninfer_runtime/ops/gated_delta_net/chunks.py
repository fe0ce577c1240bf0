"""Launch of `gated_delta_net` over chunks of 64 tokens: the way of sequences with many new ones.

A pass over some chunks takes two launches: what does not touch the state, for all of them at once, then
states and results, one chunk after the other. The first leaves 1.9 MB a chunk for the second, with 16 and
48 heads, and runs beside the second one of the pass before.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.cuda.arguments import floats, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Argument, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.gated_delta_net import (
    HEAD,
    DeltaInputs,
    DeltaSlots,
    DeltaSteps,
    DeltaWeights,
)
from ninfer_runtime.ops.gated_delta_net.recurrence import projections, token_stride

CHUNK = 64
"""Tokens of a chunk, and new tokens of a sequence from which on it goes this way."""

TERMS_SOURCE = "ops/gated_delta_net/chunk_terms.cu"
STATES_SOURCE = "ops/gated_delta_net/chunk_states.cu"
TERMS_THREADS = 256

# Layouts as in delta_chunk.cuh and chunk_terms.cu.
TILE_BYTES = CHUNK * 128
KEY_RECORD_BYTES = 4 * TILE_BYTES
FACTOR_BYTES = (4 * CHUNK + 4) * 4
TERM_BYTES = 2 * 10 * 512 + FACTOR_BYTES
SQUARE_BYTES = 16 * 512
VALUE_RECORD_BYTES = TERM_BYTES + 2 * TILE_BYTES
TERMS_HEAD_BYTES = 6 * 512 + 4 * 272 * 4 + 4 * 16 * 48 + (6 * CHUNK + 16) * 4
TERMS_TOGETHER = 4
BARRIER_BYTES = 32

PASS_CHUNKS = 32
"""Chunks of a pass, of all sequences together; two passes are in memory at once."""


@dataclass(frozen=True, slots=True)
class StatesVariant:
    """How a head's states are shared out.

    Attributes:
        strips: Blocks of a head, a cluster.
        overlaps: Whether warps of their own fetch the next chunk and finish the one before.
        products: Who computes products: warps alone, or groups of four.
    """

    strips: int
    overlaps: bool
    products: str = "WarpProducts"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (8 // self.strips + 4 * self.overlaps) * 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        stages, alignment = (2, 1024) if self.overlaps else (1, 16)
        matrices = (
            KEY_RECORD_BYTES + 2 // self.strips * TILE_BYTES + 2 * SQUARE_BYTES + FACTOR_BYTES
        )
        results = CHUNK * (HEAD // self.strips + 4) * 4
        stage_bytes = -(-matrices // alignment) * alignment
        return stages * (stage_bytes + results) + 2 * CHUNK * 4 + BARRIER_BYTES


def choose_variant(target: Target) -> StatesVariant:
    """Two blocks a head where there are clusters; overlap where two chunks fit."""
    strips = 2 if target.has_clusters else 1
    products = "GroupProducts" if target.has_wgmma else "WarpProducts"
    overlapping = StatesVariant(strips, overlaps=True, products=products)
    if strips > 1 and overlapping.shared_bytes <= target.shared_bytes:
        return overlapping
    return StatesVariant(strips, overlaps=False)


def terms_kernel(weight_dtype: DType) -> Kernel:
    """What does not touch the state."""
    return Kernel(
        TERMS_SOURCE, f"ninfer::gated_delta_net_terms_kernel<{ELEMENT_TYPES[weight_dtype]}>"
    )


def states_kernel(variant: StatesVariant, weight_dtype: DType) -> Kernel:
    """States and results."""
    shape = f"{variant.strips}, {str(variant.overlaps).lower()}, ninfer::{variant.products}"
    name = f"ninfer::gated_delta_net_states_kernel<{shape}, {ELEMENT_TYPES[weight_dtype]}>"
    return Kernel(STATES_SOURCE, name)


def kernels(target: Target) -> list[Kernel]:
    """What models need, with weights in bf16 or fp32."""
    variant = choose_variant(target)
    return [
        kernel
        for dtype in ELEMENT_TYPES
        for kernel in (terms_kernel(dtype), states_kernel(variant, dtype))
    ]


def passes(B: int, C: int, ring: int) -> tuple[int, int]:
    """How many passes there are, and of how many chunks of each sequence.

    Args:
        B: Sequences.
        C: New tokens of each at most; replayed ones are not more than the ring holds.
        ring: Records of a slot.
    """
    # Where the stored state ends, and at the end, a chunk may be short.
    most = (C + ring) // CHUNK + 2
    chunks = -(-most // -(-(C // CHUNK * B) // PASS_CHUNKS))
    return -(-most // chunks), chunks


def run_chunks(
    device: CudaDevice,
    inputs: DeltaInputs,
    weights: DeltaWeights,
    slots: DeltaSlots,
    steps: DeltaSteps,
    out: Tensor,
    *,
    eps: float,
) -> None:
    """Queue the passes for the sequences with at least `CHUNK` new tokens; the others are left."""
    B, C, CH = inputs.u.shape
    VH, ring = inputs.a.shape[2], slots.records.shape[1]
    KH = (CH // HEAD - VH) // 2
    count, chunks = passes(B, C, ring)
    key_records = device.empty((2, B * chunks * KH, KEY_RECORD_BYTES), DType.UINT8)
    value_records = device.empty((2, B * chunks * VH, VALUE_RECORD_BYTES), DType.UINT8)
    between = device.empty((B, VH, HEAD, HEAD), DType.FP32)
    terms_bytes = KEY_RECORD_BYTES + min(VH // KH, TERMS_TOGETHER) * TERMS_HEAD_BYTES
    variant = choose_variant(device.target)
    lengths = (steps.position, steps.replayed, steps.columns, steps.committed)
    terms_arguments: list[Argument] = [
        *projections(inputs),
        *map(pointer, (weights.convolution, weights.a_log, weights.dt_bias, slots.records)),
        *map(pointer, (steps.source, *lengths)),
    ]
    states_arguments: list[Argument] = [
        pointer(inputs.z),
        *longs(token_stride(inputs.z)),
        *map(pointer, (weights.norm, slots.state, between, steps.source, steps.destination)),
        *map(pointer, (*lengths, out)),
        *integers(C, KH, VH),
    ]
    for index in range(count):
        # In turns, because the terms of a pass are computed beside the states of the one before.
        own = slice(index % 2, index % 2 + 1)
        records = [pointer(each[own]) for each in (key_records, value_records)]
        span = integers(index * chunks, chunks)
        device.launch(
            terms_kernel(weights.convolution.dtype),
            Geometry(
                2 * B * chunks * KH + int(index > 0), TERMS_THREADS, terms_bytes, overlap=True
            ),
            [
                *terms_arguments,
                *records,
                *integers(C, KH, VH, ring),
                *span,
                *integers(int(index > 0)),
            ],
        )
        device.launch(
            states_kernel(variant, weights.norm.dtype),
            Geometry(
                B * VH * variant.strips,
                variant.threads,
                variant.shared_bytes,
                cluster=variant.strips,
                overlap=True,
            ),
            [*records, *states_arguments, *span, *floats(eps)],
        )
