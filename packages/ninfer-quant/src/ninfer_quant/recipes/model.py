"""What a recipe works on: the logical parameters of a model and where their values come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from ninfer_format import Component, get_format
from ninfer_format.errors import CheckpointError
from ninfer_quant.errors import MissingTensorsError, RecipeError
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.store import AbsentSource, WeightStore


class SourceFinder(Protocol):
    """Knows what a store calls the parameters of a model."""

    def find(self, name: str, store: WeightStore) -> LogicalSource:
        """The source of a parameter, an `AbsentSource` if the store does not have it."""
        ...


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
        token_count: Number of token ids that have a meaning; they come first. 0 if not known.
        special_token_ids: Ids of the special tokens, ascending.
    """

    def __init__(
        self,
        components: Mapping[str, Component],
        parameters: Iterable[Parameter],
        packing_groups: Sequence[tuple[str, ...]] = (),
        sources: SourceFinder | None = None,
    ) -> None:
        self.components = dict(components)
        self.parameters: dict[str, Parameter] = {}
        self.packing_groups = tuple(packing_groups)
        self.token_count = 0
        self.special_token_ids: tuple[int, ...] = ()
        self._sources = sources
        for parameter in parameters:
            self.add(parameter)

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration of the text component."""
        return self.components["text"].config

    def has_source(self, name: str, store: WeightStore) -> bool:
        """Whether a store has the weights of a parameter.

        Raises:
            CheckpointError: It has weights of that name that do not fit the model.
        """
        return self._sources is not None and not isinstance(
            self._sources.find(name, store), AbsentSource
        )

    def source(self, name: str, store: WeightStore, format: str | None = None) -> LogicalSource:
        """The weights of a parameter in another store than the model's own.

        Args:
            name: Name of the parameter.
            store: One of a recipe's `sources`.
            format: Format in which the weights must be encoded; None if it does not matter.

        Raises:
            RecipeError: There is no such parameter.
            MissingTensorsError: The store lacks the weights or a scale of theirs.
            CheckpointError: They do not fit the model, or are not encoded in `format`.
        """
        if name not in self.parameters or self._sources is None:
            raise RecipeError(f"no parameter {name!r} that a store could have")
        source = self._sources.find(name, store)
        if isinstance(source, AbsentSource):
            raise MissingTensorsError(
                f"tensors are missing for {name}: {', '.join(source.tensors)}",
                path=store.path,
                tensors=source.tensors,
            )
        if format is not None:
            found = None if source.encoded is None else source.encoded.format
            if found != get_format(format).name:
                raise CheckpointError(
                    f"tensor {source.label!r} for {name} is "
                    f"{'not encoded' if found is None else found}, expected {format}",
                    path=store.path,
                    tensors=source.tensors,
                )
        return source

    def add(self, parameter: Parameter) -> None:
        """Add a parameter.

        Raises:
            RecipeError: There is one of that name, or its source has another shape.
        """
        if parameter.name in self.parameters:
            raise RecipeError("declared twice", parameters=(parameter.name,))
        if parameter.source.shape != parameter.shape:
            raise RecipeError(
                f"source {parameter.source.label} has shape {list(parameter.source.shape)}, "
                f"expected {list(parameter.shape)}",
                parameters=(parameter.name,),
            )
        self.parameters[parameter.name] = parameter
