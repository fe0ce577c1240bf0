"""Rows that products take, with the orders that a GPU's kernels read them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor


@dataclass(frozen=True, slots=True)
class DeferredNorm:
    """What the rows still are to be divided by: ``scale / sqrt(Σ squares · inverse_size + eps)``.

    Attributes:
        squares: Address of the squares of each of the T rows, float32 [T, count].
        count: Parts of a row, each with the sum of its squares.
        inverse_size: 1 / D.
        eps: Of the norm.
        scale: What the values have been divided by.
    """

    squares: int
    count: int
    inverse_size: float
    eps: float
    scale: float


@dataclass(frozen=True, slots=True)
class PackedActivations:
    """Rows [T, K] in the order that a linear kernel reads, in device memory.

    Attributes:
        data: Address of the values, f16 or bf16.
        column_scale: Address of a float32 factor for each of the T; of bf16 all are 1.
        columns: T.
        x_rows: Rows that the values are laid out for.
        memory: What keeps the memory, None if it is not to be kept here.
        norm: A norm that the product has to finish, in place of `column_scale`.
    """

    data: int
    column_scale: int
    columns: int
    x_rows: int
    memory: Any = None
    norm: DeferredNorm | None = None


class ProductInput(Tensor):
    """A matrix [T, K] that remembers the orders into which it has been packed.

    An op whose result is multiplied with weights returns one. Its kernel may have written those
    orders as well; what it has not is packed by the first product that needs it and then kept. On a
    CPU it is a tensor like others. Views and other shapes of it are plain tensors.

    Attributes:
        f16: The rows as f16, for weights of every format but bf16.
        bf16: The rows as bf16, for weights in bf16.
    """

    __slots__ = ("bf16", "f16")

    def __init__(self, array: Any, dtype: DType, device: Device) -> None:
        super().__init__(array, dtype, device)
        self.forget()

    @classmethod
    def empty(cls, device: Device, shape: Sequence[int], dtype: DType) -> ProductInput:
        """A matrix with undefined elements that is packed nowhere."""
        return cls(device.empty(shape, dtype).array, dtype, device)

    def forget(self) -> None:
        """The elements change: what was packed holds no longer."""
        self.f16: PackedActivations | None = None
        self.bf16: PackedActivations | None = None
