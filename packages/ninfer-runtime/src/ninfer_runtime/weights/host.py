"""Weights as numbers in float32: what the CPU multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.models.parameter_source import ParameterSource
from ninfer_runtime.ops.gated_linear import GatedWeight

MATRIX_ORDER: Literal["F"] = "F"
"""Memory order of projections [N, K]: the product with a single row, which decoding consists of,
reads memory about twice as fast in this order as in C order (OpenBLAS, weights beyond the cache).
"""


class HostWeights:
    """Implements `ninfer_runtime.weights.store.WeightStore`; see there for contracts.

    Args:
        parameters: What may be asked for.
        source: Values of the parameters.
        device: Where the weights shall lie.
    """

    def __init__(
        self, parameters: Sequence[LogicalParameter], source: ParameterSource, device: Device
    ) -> None:
        self.device = device
        self._source = source
        self._parameters = {parameter.name: parameter for parameter in parameters}

    def tensor(self, *names: str) -> Tensor:
        """Parameters in C order."""
        if len(names) > 1:
            return self._stack(names, "C")
        return self.device.from_host(self._source.read(self._parameters[names[0]]))

    def projections(self, names: Sequence[str]) -> tuple[Tensor]:
        """One matrix in `MATRIX_ORDER`."""
        if len(names) == 1:
            values = self._source.read(self._parameters[names[0]])
            return (self.device.from_host(np.asarray(values, order=MATRIX_ORDER)),)
        return (self._stack(names, MATRIX_ORDER),)

    def gated(self, gate: str, up: str) -> GatedWeight:
        """One matrix in `MATRIX_ORDER`, gate above up."""
        return GatedWeight(self.projections([gate, up]))

    def table(self, name: str) -> Tensor:
        """A matrix in C order, so that its rows are contiguous."""
        return self.tensor(name)

    def bank(self, names: Sequence[str]) -> Tensor:
        """One matrix in C order: each member is contiguous, as it is used alone.

        The members are read one by one into their places, so that no second copy of all of them
        exists.
        """
        return self._stack(names, "C")

    def is_shared(self, name: str, other: str) -> bool:
        """Whether two parameters have their values in the same place."""
        return self._source.is_shared(name, other)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights; what is shared counts once."""
        return sum(map(_num_bytes, self._distinct()))

    @property
    def loading_bytes(self) -> int:
        """Bytes at the worst moment: a matrix exists in C order and in its own."""
        copied = [_num_bytes(each) for each in self._distinct() if each.is_projection]
        return self.num_bytes + max(copied, default=0)

    def _distinct(self) -> list[LogicalParameter]:
        """The parameters without projections that are the table of another one."""
        tables = [each for each in self._parameters.values() if not each.is_projection]
        return [each for each in self._parameters.values() if not self._is_table(each, tables)]

    def _is_table(self, parameter: LogicalParameter, tables: list[LogicalParameter]) -> bool:
        return parameter.is_projection and any(
            table.shape == parameter.shape and self._source.is_shared(parameter.name, table.name)
            for table in tables
        )

    def _stack(self, names: Sequence[str], order: Literal["C", "F"]) -> Tensor:
        members = [self._parameters[name] for name in names]
        rows = sum(member.shape[0] for member in members)
        weight = np.empty((rows, members[0].shape[1]), np.float32, order=order)
        end = 0
        for member in members:
            begin, end = end, end + member.shape[0]
            weight[begin:end] = self._source.read(member)
        return self.device.from_host(weight)


def _num_bytes(parameter: LogicalParameter) -> int:
    return prod(parameter.shape) * np.dtype(np.float32).itemsize
