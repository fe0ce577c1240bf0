"""Gated DeltaNet between its projections, for new tokens of several sequences."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.product_input import ProductInput
from ninfer_runtime.ops.registry import call, register

OP = "gated_delta_net"
register(OP, "cpu", "ninfer_runtime.ops.gated_delta_net.reference:gated_delta_net")
register(OP, "cuda", "ninfer_runtime.ops.gated_delta_net.cuda:gated_delta_net")


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Projections of the new tokens: C at most for each of B sequences.

    Attributes:
        u: [B, C, CH]: input of the convolution; CH = 2·KH·DK + VH·DV: queries, keys, values.
        z: [B, C, VH·DV]: output gate.
        a: [B, C, VH]: decay before its activation.
        b: [B, C, VH]: step size before its activation.
    """

    u: Tensor
    z: Tensor
    a: Tensor
    b: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the attributes."""
        return self.u, self.z, self.a, self.b


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """Weights of a layer.

    Attributes:
        convolution: [J, CH], fp32 or bf16: J taps, of which the last meets the current token.
        a_log: [VH], fp32.
        dt_bias: [VH], fp32.
        norm: [DV], of the dtype of `convolution`.
    """

    convolution: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the attributes."""
        return self.convolution, self.a_log, self.dt_bias, self.norm


@dataclass(frozen=True, slots=True)
class DeltaSlots:
    """States of many sequences.

    Attributes:
        state: [slots, VH, DV, DK], fp32: the matrix of each value head.
        records: [slots, ring, CH + 2·VH], of the dtype of `u`: u, a and b of the last tokens; the
            token at position p is record ``p % ring``.
    """

    state: Tensor
    records: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes taken."""
        return self.state.num_bytes + self.records.num_bytes


@dataclass(frozen=True, slots=True)
class DeltaSteps:
    """What each sequence does, each [B], int32.

    Attributes:
        source: Slot that is read.
        destination: Slot that is written; the same, or one that no sequence reads in this call.
        position: Tokens in the state of the source slot; 0 stands for a state and records of zeros.
        replayed: Recorded tokens after `position` that come before the new ones, 0 or more.
        columns: New tokens, 0..C.
        committed: New tokens that the stored state is to contain, 0..columns.
    """

    source: Tensor
    destination: Tensor
    position: Tensor
    replayed: Tensor
    columns: Tensor
    committed: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the attributes."""
        return (
            self.source,
            self.destination,
            self.position,
            self.replayed,
            self.columns,
            self.committed,
        )


HEAD = 128
"""DK and DV that there are kernels for."""

TAPS = 4
"""J that there are kernels for."""


def gated_delta_net(
    inputs: DeltaInputs,
    weights: DeltaWeights,
    slots: DeltaSlots,
    steps: DeltaSteps,
    *,
    eps: float,
    settled: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Run the replayed and then the new tokens of each sequence from its state.

    The tokens of a sequence are convolved (`causal_conv1d`, rounded to the dtype of `u`), gated
    (`delta_gates`) and run through the delta rule (`gated_delta_rule`) in order; the rows of the new
    ones, not rounded in between, are normalised and gated (`gated_rms_norm`) and rounded once. The
    state after ``replayed + committed`` tokens is stored in the destination (of no tokens at position
    0 in place: nobody reads it). The new tokens are recorded there; of more than ``ring - (J-1)`` only
    the last so many. With another destination than the source, the J - 1 tokens before `position`
    and the replayed ones are copied to its records. Row b·C + c of the result is that of token c of
    sequence b, zeros where c ≥ columns[b]. A row does not depend on the other sequences of the call, nor, but for rounding, on how its sequence
    was cut into calls and replays.

    Args:
        inputs: fp32 or bf16, all of one dtype, possibly strided.
        weights: Of the layer.
        slots: Changed in place; replayed + C ≤ ring - (J-1), unless C alone is more: then ring is
            2·(J-1) at least, so that those that the next token meets are recorded.
        steps: Of the B sequences. Their values are on the device and not checked: with more replayed
            tokens than the ring holds, other records are read.
        eps: Of the norm.
        settled: The call before this one made `inputs` by `stacked_linear` or `linear`, from
            something else than slots and steps: a GPU may read those while it runs.
        out: [B·C, VH·DV], fp32 or bf16; shares no memory with the inputs. By default a new
            `ProductInput` of the dtype of `u`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for these sizes of heads or this number of taps.
    """
    check_rank(OP, "u", inputs.u, "B C CH")
    check_rank(OP, "a", inputs.a, "B C VH")
    check_rank(OP, "convolution", weights.convolution, "J CH")
    check_rank(OP, "state", slots.state, "S VH DV DK")
    check_rank(OP, "records", slots.records, "S R CH+2VH")
    B, C, CH = inputs.u.shape
    S, VH, DV, DK = slots.state.shape
    ring, J = slots.records.shape[1], weights.convolution.shape[0]
    _check_heads(CH, VH, DV, DK)
    needed = max(J, J - 1 + min(C, J - 1))
    if ring < needed:
        raise OpArgumentError(OP, "records", expected=f"at least {needed} a slot", found=ring)
    shapes = (
        ("z", inputs.z, (B, C, VH * DV)),
        ("a", inputs.a, (B, C, VH)),
        ("b", inputs.b, (B, C, VH)),
        ("convolution", weights.convolution, (J, CH)),
        ("a_log", weights.a_log, (VH,)),
        ("dt_bias", weights.dt_bias, (VH,)),
        ("norm", weights.norm, (DV,)),
        ("records", slots.records, (S, ring, CH + 2 * VH)),
    )
    for argument, tensor, shape in shapes:
        check_shape(OP, argument, tensor, shape)
    check_dtype(OP, "u", inputs.u)
    for argument in ("z", "a", "b"):
        check_dtype(OP, argument, getattr(inputs, argument), (inputs.u.dtype,))
    check_dtype(OP, "convolution", weights.convolution)
    check_dtype(OP, "norm", weights.norm, (weights.convolution.dtype,))
    check_dtype(OP, "records", slots.records, (inputs.u.dtype,))
    for argument, tensor in (("a_log", weights.a_log), ("dt_bias", weights.dt_bias)):
        check_dtype(OP, argument, tensor, (DType.FP32,))
    check_dtype(OP, "state", slots.state, (DType.FP32,))
    for tensor in steps.tensors:
        check_shape(OP, "steps", tensor, (B,))
        check_dtype(OP, "steps", tensor, (DType.INT32,))
    shape = (B * C, VH * DV)
    if out is None:
        out = ProductInput.empty(inputs.u.device, shape, inputs.u.dtype)
    out = output(OP, out, inputs.u, shape)
    tensors = (*weights.tensors, slots.state, slots.records, *steps.tensors, out)
    call(OP, *inputs.tensors, *tensors, eps=eps, settled=settled)
    return out


def _check_heads(CH: int, VH: int, DV: int, DK: int) -> None:
    """Refuse channels that are not queries and keys of heads that divide the value heads."""
    query_and_key = CH - VH * DV
    if query_and_key <= 0 or query_and_key % (2 * DK):
        raise OpArgumentError(
            OP, "u", expected=f"2·KH·{DK} channels besides {VH} value heads of {DV}", found=CH
        )
    if VH % (query_and_key // (2 * DK)):
        raise OpArgumentError(OP, "a", expected="a multiple of KH heads", found=VH)
