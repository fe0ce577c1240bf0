"""From a checkpoint and an architecture to the model that a recipe works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer_format import Component
from ninfer_format.errors import CheckpointError, UnsupportedConfigError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.parameters import ParameterSources, WrongShapeError
from ninfer_quant.sources.safetensors_store import CONFIG_NAME
from ninfer_quant.sources.store import AbsentSource, WeightStore
from ninfer_runtime.models.architecture import Architecture, LogicalParameter
from ninfer_runtime.models.registry import find_architecture, known_names


def architecture_of(store: WeightStore) -> Architecture:
    """Find the architecture that a checkpoint's ``config.json`` names.

    Raises:
        CheckpointError: There is no configuration.
        UnsupportedConfigError: It names no known architecture.
    """
    if not store.config:
        raise CheckpointError(f"has no {CONFIG_NAME} beside the weights", path=store.path)
    names = store.config.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise UnsupportedConfigError(
            "architectures",
            names,
            expected=f"a list of one of {known_names()}",
            path=store.path / CONFIG_NAME,
        )
    return find_architecture(str(names[0]))


def component_configs(
    store: WeightStore,
    architecture: Architecture,
    components: Sequence[str],
    companions: Mapping[str, WeightStore],
) -> dict[str, dict[str, Any]]:
    """Configurations of the selected components.

    Args:
        store: The model's own checkpoint.
        architecture: Knows how configurations are read.
        components: Which ones.
        companions: The checkpoints of components that have their own.

    Raises:
        CheckpointError: The checkpoint has no such component.
        UnsupportedConfigError: A value would change the mathematics; its file is named.
    """
    own = {name: companion.config for name, companion in companions.items()}
    try:
        return architecture.component_configs(store.config, components, own)
    except UnsupportedConfigError as error:
        path = companions.get(error.key.split(".")[0], store).path / CONFIG_NAME
        for component in components:
            if error.key == f"{component}_config" and store.config.get(error.key) is None:
                raise CheckpointError(
                    f"the checkpoint has no {component} component: {error.key} is absent",
                    path=path,
                    hint=f"leave {component} out of --components",
                ) from error
        raise UnsupportedConfigError(
            error.key, error.value, expected=error.expected, path=path
        ) from error


def build_model(
    store: WeightStore,
    architecture: Architecture,
    components: Mapping[str, Component],
    companions: Mapping[str, WeightStore],
) -> Model:
    """Attach every logical parameter of the components to its tensor.

    Weights that the checkpoint lacks become `AbsentSource`; a recipe may assign others.

    Args:
        store: Where the values are.
        architecture: Knows the parameters and their places.
        components: Component records of the artifact to come.
        companions: The checkpoints of components that have their own.

    Raises:
        CheckpointError: Tensors have another shape than the configuration asks for; all of them
            are named.
    """
    configs = {name: component.config for name, component in components.items()}
    logical = architecture.parameters(configs)
    shapes = {parameter.name: parameter.shape for parameter in logical}
    sources = ParameterSources(architecture, configs, shapes)
    stores = {name: companions.get(name, store) for name in components}
    found = _find_all(sources, logical, stores)
    return Model(
        components,
        (
            Parameter(item.name, item.shape, found[item.name], item.inputs, item.storage_format)
            for item in logical
        ),
        architecture.packing_groups(configs),
        sources,
    )


def _find_all(
    sources: ParameterSources,
    logical: Sequence[LogicalParameter],
    stores: Mapping[str, WeightStore],
) -> dict[str, LogicalSource]:
    found: dict[str, LogicalSource] = {}
    wrong: dict[str, WrongShapeError] = {}
    for parameter in logical:
        try:
            store = stores[parameter.residency]
            found[parameter.name] = sources.find(parameter.name, store)
        except WrongShapeError as error:
            wrong[error.description] = error
    if wrong:
        raise CheckpointError(
            f"tensors have the wrong shape ({len(wrong)}): {'; '.join(wrong)}",
            path=next(iter(wrong.values())).store_path,
            tensors=tuple(name for error in wrong.values() for name in error.tensors),
            hint="do config.json and the weights belong together?",
        )
    return found


def refuse_absent(recipe: Recipe, *, allow_planned: bool) -> None:
    """Check that there are weights for everything that will be stored.

    Args:
        recipe: A recipe after all its calls.
        allow_planned: Whether weights count that are only not there yet.

    Raises:
        CheckpointError: Weights are missing; all their tensors are named.
    """
    absent = [
        selection.source
        for name, selections in recipe.selections.items()
        if name not in recipe.aliases
        for selection in selections
        if isinstance(selection.source, AbsentSource)
    ]
    missing = [source for source in absent if not (allow_planned and source.is_planned)]
    if missing:
        names = tuple(dict.fromkeys(name for source in missing for name in source.tensors))
        raise CheckpointError(
            f"tensors are missing ({len(names)}): {', '.join(names)}",
            path=missing[0].path,
            tensors=names,
        )


def used_tensors(store: WeightStore, recipe: Recipe) -> set[str]:
    """Names of the stored tensors that a recipe reads."""
    items = (item for items in recipe.selections.values() for item in items)
    return {
        name
        for item in items
        if item.source.origin in (None, store.path)
        for name in item.source.tensors
    }


def unused_tensors(store: WeightStore, architecture: Architecture, recipe: Recipe) -> list[str]:
    """Tensors that no parameter reads, without those of components that were not selected.

    Args:
        store: All tensors.
        architecture: Knows which component a tensor belongs to.
        recipe: What reads them.
    """
    used = used_tensors(store, recipe)
    for parameter in recipe.model.parameters.values():
        # What a recipe has replaced was understood all the same.
        used.update(parameter.source.tensors)
    return [
        name
        for name in store.stored_names
        if name not in used and architecture.tensor_component(name) in recipe.model.components
    ]
