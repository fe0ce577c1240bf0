"""From a checkpoint and an architecture to the model that a recipe works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_format import Component, SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError, UnsupportedConfigError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.sources.logical import (
    LogicalSource,
    TensorSource,
    reshape,
    select_rows,
    transpose,
)
from ninfer_runtime.models.architecture import Architecture, SourceView
from ninfer_runtime.models.registry import find_architecture, known_names

CONFIG_NAME = "config.json"


def architecture_of(checkpoint: SafetensorsCheckpoint) -> Architecture:
    """Find the architecture that a checkpoint's ``config.json`` names.

    Raises:
        CheckpointError: There is no configuration.
        UnsupportedConfigError: It names no known architecture.
    """
    if not checkpoint.config:
        raise CheckpointError(f"has no {CONFIG_NAME} beside the weights", path=checkpoint.path)
    names = checkpoint.config.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise UnsupportedConfigError(
            "architectures",
            names,
            expected=f"a list of one of {known_names()}",
            path=checkpoint.path / CONFIG_NAME,
        )
    return find_architecture(str(names[0]))


def component_configs(
    checkpoint: SafetensorsCheckpoint, architecture: Architecture, components: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Configurations of the selected components.

    Raises:
        CheckpointError: The checkpoint has no such component.
        UnsupportedConfigError: A value would change the mathematics; its file is named.
    """
    try:
        return architecture.component_configs(checkpoint.config, components)
    except UnsupportedConfigError as error:
        path = checkpoint.path / CONFIG_NAME
        for component in components:
            if error.key == f"{component}_config" and checkpoint.config.get(error.key) is None:
                raise CheckpointError(
                    f"the checkpoint has no {component} component: {error.key} is absent",
                    path=path,
                    hint=f"leave {component} out of --components",
                ) from error
        raise UnsupportedConfigError(
            error.key, error.value, expected=error.expected, path=path
        ) from error


def build_model(
    checkpoint: SafetensorsCheckpoint,
    architecture: Architecture,
    components: Mapping[str, Component],
) -> Model:
    """Attach every logical parameter of the components to its tensor.

    Args:
        checkpoint: Where the values are.
        architecture: Knows the parameters and their places.
        components: Component records of the artifact to come.

    Raises:
        CheckpointError: Tensors are missing, or have another shape than the configuration asks
            for; all of them are named.
    """
    configs = {name: component.config for name, component in components.items()}
    views = architecture.source_views(configs, checkpoint.names)
    _check_views(checkpoint, views)
    return Model(
        components,
        (
            Parameter(
                logical.name,
                logical.shape,
                view_source(checkpoint, views[logical.name], logical.shape),
                logical.inputs,
                logical.storage_format,
            )
            for logical in architecture.parameters(configs)
        ),
        architecture.packing_groups(configs),
    )


def view_source(
    checkpoint: SafetensorsCheckpoint, view: SourceView, shape: tuple[int, ...]
) -> LogicalSource:
    """Read a parameter of `shape` through a view of a tensor."""
    source: LogicalSource = TensorSource(checkpoint, view.tensor)
    if view.rows is not None:
        source = select_rows(source, view.rows)
    if view.axes is not None:
        source = transpose(source, view.axes)
    return reshape(source, shape)


def unused_tensors(
    checkpoint: SafetensorsCheckpoint, architecture: Architecture, recipe: Recipe
) -> list[str]:
    """Tensors that no parameter reads, without those of components that were not selected.

    Args:
        checkpoint: All tensors.
        architecture: Knows which component a tensor belongs to.
        recipe: What reads them.
    """
    sources = [parameter.source for parameter in recipe.model.parameters.values()]
    sources += [item.source for items in recipe.selections.values() for item in items]
    used = {name for source in sources for name in source.tensors}
    return [
        name
        for name in checkpoint.names
        if name not in used and architecture.tensor_component(name) in recipe.model.components
    ]


def _check_views(checkpoint: SafetensorsCheckpoint, views: Mapping[str, SourceView]) -> None:
    present = set(checkpoint.names)
    wanted = {view.tensor: view.tensor_shape for view in views.values()}
    missing = tuple(name for name in wanted if name not in present)
    if missing:
        raise CheckpointError(
            f"tensors are missing ({len(missing)}): {', '.join(missing)}",
            path=checkpoint.path,
            tensors=missing,
        )
    wrong: dict[str, Any] = {}
    for name, shape in wanted.items():
        found = checkpoint.info(name).shape
        if found != shape:
            wrong[name] = f"{name} {list(found)}, expected {list(shape)}"
    if wrong:
        raise CheckpointError(
            f"tensors have the wrong shape ({len(wrong)}): {'; '.join(wrong.values())}",
            path=checkpoint.path,
            tensors=tuple(wrong),
            hint="do config.json and the weights belong together?",
        )
