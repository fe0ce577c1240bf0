"""Launch of `gated_delta_net` on an NVIDIA GPU."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.cuda.arguments import device_of, floats, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, element_strides, is_aligned, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.gated_delta_net import HEAD, OP, TAPS

SOURCE = "ops/gated_delta_net/gated_delta_net.cu"
RECORD_THREADS = 256
PAIR_BYTES = 4
"""A thread reads two channels at once."""

GATE_BYTES = 8
"""A lane reads four components of the output gate at once."""


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


def choose_variant(target: Target, columns: int) -> Variant:
    """A cluster for each head where there are clusters, else one block with all of the state.

    Args:
        target: Kind of GPU.
        columns: New tokens of a sequence at most.
    """
    if not target.has_clusters:
        return Variant(strips=1, lanes=4, chunk=2)
    return Variant(strips=4, lanes=8, chunk=4 if columns <= SHORT_COLUMNS else 16)


def kernel(variant: Variant, weight_dtype: DType) -> Kernel:
    """The instance for a variant and the dtype of convolution and norm."""
    numbers = f"{variant.strips}, {variant.lanes}, {variant.chunk}"
    name = f"ninfer::gated_delta_net_kernel<{numbers}, {ELEMENT_TYPES[weight_dtype]}>"
    return Kernel(SOURCE, name)


def record_kernel() -> Kernel:
    """What records the last tokens of a long call."""
    return Kernel(SOURCE, "ninfer::gated_delta_net_record_kernel")


def kernels(target: Target) -> list[Kernel]:
    """What models need, with weights in bf16 or fp32."""
    variants = {choose_variant(target, columns) for columns in (1, SHORT_COLUMNS + 1)}
    return [
        *(kernel(variant, dtype) for variant in variants for dtype in ELEMENT_TYPES),
        record_kernel(),
    ]


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
) -> None:
    """See the contract in the package.

    Where not all new tokens fit the records beside what is read of them, the last ones are recorded
    by a launch of their own: blocks do not wait for each other.
    """
    device = device_of(u)
    B, C, CH = u.shape
    VH, ring = a.shape[2], records.shape[1]
    token_strides = []
    for tensor in (u, a, b, z):
        strides = element_strides(tensor)
        if tensor.dtype is not DType.BF16 or strides[2] != 1 or strides[0] != C * strides[1]:
            raise UnsupportedOpError(OP, u.device.kind, detail=f"{tensor!r}, strides {strides}")
        token_strides.append(strides[1])
    if not (is_aligned(u, PAIR_BYTES) and is_aligned(z, GATE_BYTES)):
        raise UnsupportedOpError(OP, u.device.kind, detail=f"{u!r}, {z!r}: not aligned")
    whole = (convolution, a_log, dt_bias, norm, state, records, out)
    steps = (source, destination, position, replayed, columns, committed)
    if not all(map(is_contiguous, (*whole, *steps))) or out.dtype is not DType.BF16:
        raise UnsupportedOpError(OP, u.device.kind, detail=f"{records!r}, {out!r}")
    if B == 0 or C == 0:
        return
    record_at_once = ring >= C + TAPS - 1
    variant = choose_variant(device.target, C)
    strips = variant.strips
    u_stride, a_stride, b_stride, z_stride = token_strides
    inputs = [
        pointer(u),
        *longs(u_stride),
        pointer(a),
        *longs(a_stride),
        pointer(b),
        *longs(b_stride),
    ]
    device.launch(
        kernel(variant, convolution.dtype),
        Geometry(B * VH * strips, variant.threads, cluster=strips, overlap=True),
        [
            *inputs,
            pointer(z),
            *longs(z_stride),
            *map(pointer, (convolution, a_log, dt_bias, norm, state, records)),
            *map(pointer, steps),
            pointer(out),
            *integers(C, (CH - VH * HEAD) // (2 * HEAD), VH, ring, int(record_at_once)),
            *floats(eps),
        ],
    )
    if record_at_once:
        return
    kept = min(C, ring - TAPS + 1)
    parts = -(-(CH + 2 * VH) // RECORD_THREADS)
    device.launch(
        record_kernel(),
        Geometry(B * kept * parts, RECORD_THREADS, overlap=True),
        [
            *inputs,
            *map(pointer, (records, destination, position, replayed, columns)),
            *integers(C, kept, CH, VH, ring),
        ],
    )
