"""One row of the tables: an object of a published model and the parameters that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ninfer_format.container.schema import Binding, Part


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """What an object is and which parameters are bound to it.

    Attributes:
        name: Its version 2 name, which stays its id.
        shape: The shape that it must have.
        bindings: The parameters in order.
    """

    name: str
    shape: tuple[int, ...]
    bindings: Mapping[str, Binding]


@dataclass(frozen=True, slots=True)
class Block:
    """Makes the rows of one part of the model.

    Attributes:
        objects: What version 2 puts before the names of its objects.
        parameters: What version 3 puts before the names of its parameters.
    """

    objects: str
    parameters: str

    def same(self, name: str, *shape: int, parameter: str | None = None) -> ObjectRow:
        """An object that is one parameter.

        Args:
            name: Name of the object within the block.
            *shape: Shape of both.
            parameter: Name of the parameter within the block, if it is another one.
        """
        binding = Binding(object=self.objects + name)
        return ObjectRow(
            self.objects + name, shape, {self.parameters + (parameter or name): binding}
        )

    def split(self, name: str, rows: Mapping[str, int], *row_shape: int) -> ObjectRow:
        """An object whose rows belong to several parameters, one after the other.

        Args:
            name: Name of the object within the block.
            rows: Number of rows by name of the parameter within the block.
            *row_shape: Shape of one row.
        """
        width = prod(row_shape)
        bindings, begin = {}, 0
        for parameter, count in rows.items():
            end = begin + count * width
            part = Part(self.objects + name, begin, end)
            bindings[self.parameters + parameter] = Binding(parts=(part,))
            begin = end
        return ObjectRow(self.objects + name, (sum(rows.values()), *row_shape), bindings)
