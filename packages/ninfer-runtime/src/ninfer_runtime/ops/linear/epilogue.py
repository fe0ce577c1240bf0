"""What the kernels do with a product beside storing it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ninfer_runtime.cuda.arguments import floats, pointer
from ninfer_runtime.cuda.launch import POINTER, Argument
from ninfer_runtime.cuda.rows import address
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear.activations import new_packed, packing_arguments
from ninfer_runtime.ops.linear.schedule import Result
from ninfer_runtime.ops.linear.weight_records import ROWS
from ninfer_runtime.ops.product_input import DeferredNorm, ProductInput

DEFERRED_NORM_SCALE = 64.0
"""What the f16 values of a sum are divided by; as in skinny_product.cuh."""

NULL: Argument = (0, POINTER)
NO_RESIDUAL: tuple[Argument, ...] = (NULL, NULL, *floats(0), NULL)
NOT_PACKED: tuple[Argument, ...] = (NULL,) * 4


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of a product.

    Attributes:
        result: Decides which instance of a kernel does it.
        residual: Arguments ``residual`` to ``squares_out`` of the skinny kernel.
        packed: Arguments ``half`` to ``words_factor``: where products will read the result.
    """

    result: Result
    residual: tuple[Argument, ...] = NO_RESIDUAL
    packed: tuple[Argument, ...] = NOT_PACKED


STORED = Epilogue(Result.STORED)


def gated(out: Tensor, *, f16: bool, bf16: bool) -> Epilogue:
    """Products of gates with what they gate, for a weight whose rows take turns.

    Args:
        out: [T, N]; keeps what is packed. `is_packable` unless nothing is wanted.
        f16: Whether f16 is wanted.
        bf16: Whether bf16 words are wanted.
    """
    *packed, _ = packing_arguments(out, f16=f16, bf16=bf16)
    return Epilogue(Result.GATED, packed=tuple(packed))


def added(x: Tensor, weight: Tensor, out: ProductInput, *, offset: float, eps: float) -> Epilogue:
    """The product is added to `x`; `out` keeps what products of it will read.

    Args:
        x: [T, D], bf16: the residual.
        weight: [D], bf16: of the norm of the sum.
        out: [T, D]; only products read it, and finish its norm.
        offset: Added to `weight`.
        eps: Of the norm.
    """
    T, D = x.shape
    half, words = new_packed(out), new_packed(out)
    count = D // ROWS
    squares = out.device.empty((T, count), DType.FP32)
    norm = DeferredNorm(address(squares), count, 1 / D, eps, DEFERRED_NORM_SCALE)
    out.f16 = replace(half, memory=(half.memory, squares), norm=norm)
    out.bf16 = replace(words, memory=(words.memory, squares), norm=replace(norm, scale=1.0))
    return Epilogue(
        Result.ADDED,
        residual=(pointer(x), pointer(weight), *floats(offset), pointer(squares)),
        packed=((half.data, POINTER), NULL, (words.data, POINTER), NULL),
    )
