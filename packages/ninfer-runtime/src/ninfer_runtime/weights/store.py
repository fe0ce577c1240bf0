"""Where layers get their weights from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.gated_linear import GatedWeight
from ninfer_runtime.ops.linear import Weight


class WeightStore(Protocol):
    """The parameters of a model, by their logical names, as they are used on a device.

    What a method returns is loaded by it; nothing is loaded twice unless it is asked for twice.
    """

    @property
    def device(self) -> Device:
        """Where the weights lie."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that all weights take on the device once they are loaded; nothing is read."""
        ...

    @property
    def loading_bytes(self) -> int:
        """Bytes that they take there at the worst moment of loading; nothing is read."""
        ...

    def tensor(self, *names: str) -> Tensor:
        """A parameter in its own shape, or several matrices one below the other.

        For what ops take as numbers, as norms and routers: fp32, or on a GPU what is stored.
        """
        ...

    def projections(self, names: Sequence[str]) -> tuple[Weight, ...]:
        """Matrices of one input, one below the other in the order of `names`.

        Returns:
            As few weights as can hold all rows, in their order; one for a single name.
        """
        ...

    def gated(self, gate: str, up: str) -> GatedWeight:
        """Two matrices of one input and one shape, of which the first gates the second."""
        ...

    def table(self, name: str) -> Weight:
        """A matrix whose rows are looked up, [V, D]; it can be multiplied with as well."""
        ...

    def bank(self, names: Sequence[str]) -> Weight:
        """Matrices of one format, one below the other, as a single weight with rows in that order."""
        ...

    def is_shared(self, name: str, other: str) -> bool:
        """Whether two parameters have their values in the same place."""
        ...
