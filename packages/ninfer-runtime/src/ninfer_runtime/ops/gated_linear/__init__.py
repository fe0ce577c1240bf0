"""A projection that gates another one."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.product_input import ProductInput
from ninfer_runtime.ops.registry import call, register

register("gated_linear", "cpu", "ninfer_runtime.ops.gated_linear.reference:gated_linear")
register("gated_linear", "cuda", "ninfer_runtime.ops.gated_linear.cuda:gated_linear")


@dataclass(frozen=True, slots=True)
class GatedWeight:
    """The matrices gate and up, [N, K] each.

    Attributes:
        matrices: As few as hold them: the rows of gate, then those of up.
        in_turns: There is one matrix, in which rows of gate and of up take turns
            (`ninfer_runtime.ops.linear.packing.rows_in_turns`).

    Raises:
        OpArgumentError: The matrices have no even number of rows, or several are to take turns.
    """

    matrices: tuple[Weight, ...]
    in_turns: bool = False

    def __post_init__(self) -> None:
        count, rows = len(self.matrices), sum(matrix.shape[0] for matrix in self.matrices)
        if rows % 2 or count == 0 or (self.in_turns and count > 1):
            raise OpArgumentError(
                "gated_linear",
                "weight",
                expected="one matrix of 2N rows" if self.in_turns else "matrices of 2N rows",
                found=[list(matrix.shape) for matrix in self.matrices],
            )

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        return sum(matrix.shape[0] for matrix in self.matrices) // 2, self.matrices[0].shape[1]

    @property
    def device(self) -> Device:
        """Where the matrices lie."""
        return self.matrices[0].device


def gated_linear(
    x: Tensor, weight: GatedWeight, *, reader: Weight | None = None, out: Tensor | None = None
) -> Tensor:
    """Project rows twice and gate: ``y[t, i] = silu(gate_i · x[t]) · (up_i · x[t])``.

    Both products are those of `linear`. They are gated in float32, and the result is rounded once to its
    dtype; for many rows of bf16, as a prompt has them, both products are rounded to bf16 before.

    Args:
        x: [T, K], fp32 or bf16, possibly strided.
        weight: [N, K] each.
        reader: What the result will be multiplied with, if nothing else takes it: then a GPU
            may leave out its elements and store the order that this product reads, where elements beyond
            4e6 become infinite.
        out: [T, N], fp32 or bf16; shares no memory with `x`. By default a new tensor of the
            dtype of `x`, made for products (`ProductInput`).

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: As for `linear`.
    """
    op = "gated_linear"
    check_rank(op, "x", x, "T K")
    check_dtype(op, "x", x)
    for matrix in weight.matrices:
        if isinstance(matrix, Tensor):
            check_rank(op, "weight", matrix, "N K")
            check_dtype(op, "weight", matrix)
        check_shape(op, "weight", matrix, (matrix.shape[0], x.shape[1]))
    shape = x.shape[0], weight.shape[0]
    if reader is not None:
        check_shape(op, "reader", reader, (reader.shape[0], shape[1]))
    if out is None:
        out = ProductInput.empty(x.device, shape, x.dtype)
    out = output(op, out, x, shape)
    call(op, x, weight, out, reader=reader)
    return out
