"""`moe_experts` on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.rows import element_strides, is_aligned, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS
from ninfer_runtime.ops.moe_experts import few_schedule, few_tokens, many_tokens, mixture_schedule
from ninfer_runtime.ops.moe_experts.cases import BANK_FORMATS, MODEL_CASES
from ninfer_runtime.ops.moe_experts.few_schedule import Formats
from ninfer_runtime.ops.moe_experts.few_tokens import Mixture
from ninfer_runtime.ops.moe_router import Routing
from ninfer_runtime.ops.moe_router.cuda import unfinished_words

MAX_EXPERTS = 512
INNER_ALIGNMENT = 128
"""What the sizes of products are multiples of, so that no record holds padding."""


def kernels(target: Target) -> Iterator[Kernel]:
    """What models need."""
    pairs = [(_formats(bank.gate_up), _formats(bank.down)) for bank in BANK_FORMATS]
    for case in MODEL_CASES.values():
        one = few_schedule.Call(
            1, case.width, case.experts_per_token, case.experts, case.inner, case.shared
        )
        yield from few_schedule.kernels(pairs, one, target)
        yield from mixture_schedule.kernels(pairs, one, target)
    gate_ups = {each for gate_up, _ in pairs for each in gate_up}
    downs = {each for _, down in pairs for each in down}
    yield from many_tokens.kernels(gate_ups, downs, target)


def moe_experts(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    shared_weights: Tensor,
    gate_up: Weight,
    down: Weight,
    shared_gate_up: Weight,
    shared_down: Weight,
    out: Tensor,
) -> None:
    """See the contract in the package."""
    routing = Routing(experts, weights, shared_weights)
    T = x.shape[0]
    mixture = mixture_of(x, gate_up, down, shared_gate_up, shared_down)
    contiguous = all(map(is_contiguous, routing.tensors))
    if mixture is None or element_strides(out)[1] != 1 or not contiguous:
        weights_told = f"{gate_up!r}, {down!r}, {shared_gate_up!r}, {shared_down!r}"
        raise UnsupportedOpError("moe_experts", "cuda", detail=f"{x!r}, {weights_told}")
    aligned = x.shape[1] % many_tokens.WIDTH_ALIGNMENT == 0 and is_aligned(x) and is_aligned(out)
    if few_schedule.MOST_TOKENS < T and aligned:
        many_tokens.run(x, routing, mixture.gate_up, mixture.down, out)
        return
    most = min(few_schedule.MOST_TOKENS, few_schedule.MAX_SLOTS // experts.shape[1])
    if most < T and unfinished_words(x):
        raise UnsupportedOpError("moe_experts", "cuda", detail=f"a part of {x!r}")
    for begin in range(0, T, most):
        part = slice(begin, begin + most)
        few_tokens.run(
            x if most >= T else x[part],
            Routing(*(each[part] for each in routing.tensors)),
            mixture,
            out[part],
        )


def mixture_of(
    x: Tensor, gate_up: Weight, down: Weight, shared_gate_up: Weight, shared_down: Weight
) -> Mixture | None:
    """The matrices of a layer if there are kernels for them and for rows like `x`."""
    D = x.shape[1]
    if (
        not isinstance(gate_up, PackedWeight)
        or not isinstance(down, PackedWeight)
        or not isinstance(shared_gate_up, PackedWeight)
        or not isinstance(shared_down, PackedWeight)
        or x.dtype is not DType.BF16
        or D % 16
        or down.shape[1] % INNER_ALIGNMENT
        or shared_down.shape[1] % INNER_ALIGNMENT
        or down.shape[0] // D > MAX_EXPERTS
        or element_strides(x)[1] != 1
    ):
        return None
    return Mixture((gate_up, shared_gate_up), (down, shared_down))


def _formats(names: tuple[str, str]) -> Formats:
    return RECORD_FORMATS[names[0]], RECORD_FORMATS[names[1]]
