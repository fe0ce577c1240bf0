"""What a recipe works on: the logical parameters of a model and where their values come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ninfer_format import Component
from ninfer_quant.errors import RecipeError
from ninfer_quant.sources.logical import LogicalSource


@dataclass(frozen=True, slots=True)
class Parameter:
    """One logical parameter with its source.

    Attributes:
        name: Full logical name, for example ``text/layers/3/attention/query``.
        shape: Logical shape; matrices are ``[N, K]`` = output rows by input columns.
        source: Where the values come from; of the same shape.
        inputs: Mathematical inputs that the parameter is multiplied with.
        storage_format: Direct format that it gets unless a recipe says otherwise.
    """

    name: str
    shape: tuple[int, ...]
    source: LogicalSource
    inputs: tuple[str, ...] = ()
    storage_format: str = "bf16"

    @property
    def is_projection(self) -> bool:
        """Whether an activation is multiplied with this parameter."""
        return bool(self.inputs)

    @property
    def residency(self) -> str:
        """First component of the name: what is loaded together with this parameter."""
        return self.name.split("/", 1)[0]

    @property
    def num_elements(self) -> int:
        """Product of the dimensions."""
        return prod(self.shape)


class Model:
    """The selected components of a checkpoint, as a recipe sees them.

    Attributes:
        components: Component records of the artifact to come, by component id.
        parameters: Logical parameters by name, in canonical order.
        packing_groups: Names that may share one parent object; a wide group precedes its parts.
    """

    def __init__(
        self,
        components: Mapping[str, Component],
        parameters: Iterable[Parameter],
        packing_groups: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self.components = dict(components)
        self.parameters: dict[str, Parameter] = {}
        self.packing_groups = tuple(packing_groups)
        for parameter in parameters:
            self._add(parameter)

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration of the text component."""
        return self.components["text"].config

    def _add(self, parameter: Parameter) -> None:
        if parameter.name in self.parameters:
            raise RecipeError("declared twice", parameters=(parameter.name,))
        if parameter.source.shape != parameter.shape:
            raise RecipeError(
                f"source {parameter.source.label} has shape {list(parameter.source.shape)}, "
                f"expected {list(parameter.shape)}",
                parameters=(parameter.name,),
            )
        self.parameters[parameter.name] = parameter
