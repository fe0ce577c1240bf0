"""Checks of op arguments that the public functions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.product_input import ProductInput

FLOATS = (DType.FP32, DType.BF16)
"""Dtypes of activations and of decoded weights."""


def check_rank(op: str, argument: str, tensor: Tensor, axes: str) -> None:
    """Refuse a tensor that has not as many axes as `axes` names, for example ``"T H HD"``."""
    names = axes.split()
    if len(tensor.shape) != len(names):
        raise OpArgumentError(
            op, argument, expected=f"axes [{', '.join(names)}]", found=list(tensor.shape)
        )


class Shaped(Protocol):
    """Anything with a shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        ...


def check_shape(op: str, argument: str, tensor: Shaped, shape: Sequence[int]) -> None:
    """Refuse a tensor, or a weight in a form of its own, of another shape."""
    if tensor.shape != tuple(shape):
        raise OpArgumentError(
            op, argument, expected=f"shape {list(shape)}", found=list(tensor.shape)
        )


def check_dtype(
    op: str, argument: str, tensor: Tensor, allowed: tuple[DType, ...] = FLOATS
) -> None:
    """Refuse a tensor whose dtype is not allowed."""
    if tensor.dtype not in allowed:
        raise OpArgumentError(op, argument, expected=" or ".join(allowed), found=tensor.dtype)


def output(op: str, out: Tensor | None, like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """The tensor that the result goes to.

    Args:
        op: Name of the op.
        out: What the caller gave, if anything.
        like: The input that decides the device, and the dtype of a new tensor.
        shape: Shape of the result; by default that of `like`.
    """
    wanted = like.shape if shape is None else tuple(shape)
    if out is None:
        return like.device.empty(wanted, like.dtype)
    check_shape(op, "out", out, wanted)
    check_dtype(op, "out", out)
    if isinstance(out, ProductInput):
        out.forget()
    return out


def product_input(
    op: str, out: Tensor | None, like: Tensor, shape: Sequence[int] | None = None
) -> Tensor:
    """As `output`, for a result that products take if it is a matrix."""
    wanted = like.shape if shape is None else tuple(shape)
    if out is None and len(wanted) == 2:
        return ProductInput.empty(like.device, wanted, like.dtype)
    return output(op, out, like, wanted)
