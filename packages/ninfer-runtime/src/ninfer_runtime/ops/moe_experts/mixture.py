"""Launch of the kernel that runs a whole mixture for up to 8 tokens (mixture.cu)."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, pointer
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import is_aligned, is_contiguous
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear.activations import pack
from ninfer_runtime.ops.linear.cuda import norm_arguments
from ninfer_runtime.ops.linear.epilogue import Epilogue
from ninfer_runtime.ops.moe_experts.exchange import exchange_of
from ninfer_runtime.ops.moe_experts.few_tokens import Mixture, banks, formats_of
from ninfer_runtime.ops.moe_experts.mixture_schedule import (
    MixtureFormats,
    MixtureSchedule,
    mixture_schedule,
)
from ninfer_runtime.ops.moe_router.cuda import token_rows


def schedule_of(
    x: Tensor, router: Tensor, mixture: Mixture, per_token: int
) -> MixtureSchedule | None:
    """How the kernel runs a layer for rows x, None if it cannot.

    Args:
        x: [T, D], bf16.
        router: [E + 1, D].
        mixture: The matrices.
        per_token: A.
    """
    if (
        router.dtype is not DType.BF16
        or not is_contiguous(router)
        or not is_aligned(router)
        or not is_aligned(x)
    ):
        return None
    formats = MixtureFormats(formats_of(mixture.gate_up), formats_of(mixture.down))
    call = mixture.call(x.shape[0], per_token)
    return mixture_schedule(formats, call, device_of(x).target)


def run(
    x: Tensor,
    router: Tensor,
    mixture: Mixture,
    per_token: int,
    schedule: MixtureSchedule,
    epilogue: Epilogue,
) -> None:
    """Compute a layer.

    Args:
        x: [T, D], bf16.
        router: [E + 1, D], bf16.
        mixture: The matrices.
        per_token: A.
        schedule: That of this call.
        epilogue: What adds the sums to a residual.
    """
    device = device_of(x)
    target = device.target
    call = mixture.call(x.shape[0], per_token)
    formats = MixtureFormats(formats_of(mixture.gate_up), formats_of(mixture.down))
    exchange = exchange_of(device)
    with device.workspace.frame():
        packed = pack(device, x, mixture.gate_up[0], takes_norms=True)
        squares, _, *norm = norm_arguments(packed.norm)
        arguments: list[Argument] = [
            *token_rows(x),
            (packed.data, POINTER),
            (packed.column_scale, POINTER),
            *integers(packed.x_rows),
            squares,
            *norm,
            pointer(router),
            *banks(mixture.gate_up),
            *banks(mixture.down),
            *epilogue.residual,
            *epilogue.packed,
            (exchange.state, POINTER),
            (exchange.exchanged, POINTER),
            *integers(exchange.parts_at, exchange.products_at, exchange.words),
            *integers(call.tokens),
        ]
        geometry = Geometry(
            target.multiprocessors,
            schedule.threads,
            schedule.shared_bytes(formats, call),
            overlap=True,
        )
        device.launch(schedule.kernel(formats, call, target), geometry, arguments)
