"""What a conversion is asked for, and everything that can be worked out before weights are read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ninfer_format import (
    ArtifactPlan,
    Component,
    ResourceSpec,
    SafetensorsCheckpoint,
    TensorSpec,
    plan_artifact,
)
from ninfer_format.checkpoint.safetensors import INDEX_NAME
from ninfer_format.container.plan import DEFAULT_MAX_FILE_BYTES
from ninfer_format.errors import CheckpointError, FileLimitError, UsageError
from ninfer_quant.pipeline.prepare import Preparation, prepare
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.loading import LoadedRecipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.resources.collect import Resources, locate_resources, read_resources
from ninfer_quant.sources.checkpoint import (
    CONFIG_NAME,
    architecture_of,
    build_model,
    component_configs,
    unused_tensors,
)
from ninfer_quant.sources.quantized import refuse_quantized

CONVERTER = "ninfer-convert"


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """What the user asks for.

    Attributes:
        model: Checkpoint folder.
        recipe: The recipe.
        overrides: Recipes that run after it, in order.
        components: Components of the artifact, ``text`` among them.
        resources: Files that replace those of the folder, by role.
        name: Public name; from the configuration when None.
        rows_per_chunk: Most rows that a worker holds in memory at once.
        max_file_bytes: Longest file; more is split into parts.
    """

    model: Path
    recipe: LoadedRecipe
    overrides: tuple[LoadedRecipe, ...] = ()
    components: tuple[str, ...] = ("text",)
    resources: Mapping[str, Path] = field(default_factory=dict)
    name: str | None = None
    rows_per_chunk: int = 512
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES

    @property
    def recipes(self) -> tuple[LoadedRecipe, ...]:
        """The recipe and its overrides, in the order they run."""
        return (self.recipe, *self.overrides)


@dataclass(frozen=True, eq=False, slots=True)
class Conversion:
    """A conversion that is ready to run.

    Attributes:
        request: What was asked for.
        name: Public name of the artifact.
        checkpoint: Where the weights are.
        model: Its logical parameters and components.
        resources: What is stored beside the weights.
        resource_files: Where the resources come from, by role.
        preparation: Objects, bindings and uses.
        warnings: What the user should know.
        seconds: How long all this took.
    """

    request: ConversionRequest
    name: str
    checkpoint: SafetensorsCheckpoint
    model: Model
    resources: Resources
    resource_files: Mapping[str, Path]
    preparation: Preparation
    warnings: tuple[str, ...]
    seconds: float

    @property
    def source_files(self) -> tuple[Path, ...]:
        """The files that the weights and the configuration come from."""
        folder = self.request.model
        shards = {self.checkpoint.info(name).file for name in self.checkpoint.names}
        beside = [folder / name for name in (CONFIG_NAME, INDEX_NAME)]
        return (*(path for path in beside if path.exists()), *sorted(shards))

    @property
    def input_files(self) -> tuple[Path, ...]:
        """Every file that is read."""
        recipes = (recipe.path for recipe in self.request.recipes)
        return (
            *self.source_files,
            *self.resource_files.values(),
            *(path for path in recipes if path is not None),
        )

    def plan_artifact(self, hashes: Mapping[Path, str], entry_name: str) -> ArtifactPlan:
        """Place all objects.

        Args:
            hashes: SHA-256 of the source files, for the provenance.
            entry_name: File name of the artifact.

        Raises:
            UsageError: The limit for the length of a file is too small.
        """
        components = {
            name: replace(component, resources=_resource_ids(self.resources, name))
            for name, component in self.model.components.items()
        }
        try:
            return plan_artifact(
                self._specs(),
                components=components,
                bindings=self.preparation.bindings,
                uses=self.preparation.uses,
                metadata={"name": self.name},
                provenance=self._provenance(hashes),
                max_file_bytes=self.request.max_file_bytes,
                entry_name=entry_name,
            )
        except FileLimitError as error:
            raise UsageError(
                f"--max-file-bytes {error.limit} is too small: header and directory leave no room",
                hint=f"give at least {error.smallest}",
            ) from error

    def _specs(self) -> list[TensorSpec | ResourceSpec]:
        resources = [
            ResourceSpec(_resource_id(component, role), data)
            for component, roles in self.resources.data.items()
            for role, data in roles.items()
        ]
        targets = [item.target for item in self.preparation.weights]
        targets += [item.target for item in self.preparation.auxiliaries]
        tensors = [
            TensorSpec(target.id, target.shape, target.format, target.layout) for target in targets
        ]
        return [*resources, *tensors]

    def _provenance(self, hashes: Mapping[Path, str]) -> dict[str, Any]:
        """Where the artifact comes from, in words that are the same on every machine."""
        base = {
            "name": folder_name(self.request.model),
            "files": {path.name: digest for path, digest in hashes.items()},
        }
        provenance: dict[str, Any] = {
            "converter": CONVERTER,
            "recipe": self.request.recipe.identity,
            "sources": {"base": base},
        }
        if self.request.overrides:
            overrides = [recipe.identity for recipe in self.request.overrides]
            provenance["overrides"] = overrides
        return provenance


def plan_conversion(request: ConversionRequest) -> Conversion:
    """Read configurations and headers, run the recipes and place every parameter.

    Raises:
        CheckpointError: The checkpoint is damaged, incomplete or quantized already.
        UnsupportedConfigError: Its configuration is not implemented.
        ConversionError: A resource file is not what the runtime can use.
        RecipeError: A recipe asks for something that cannot be done.
        UsageError: A resource override is wrong.
    """
    started = time.perf_counter()
    if not request.model.is_dir():
        raise CheckpointError(
            "is not a folder", path=request.model, hint="--model takes a checkpoint folder"
        )
    checkpoint = SafetensorsCheckpoint(request.model)
    architecture = architecture_of(checkpoint)
    configs = component_configs(checkpoint, architecture, request.components)
    components = {
        name: Component(config, target=None if name == "text" else "text")
        for name, config in configs.items()
    }
    model = build_model(checkpoint, architecture, components)
    located = locate_resources(request.model, architecture, tuple(configs), request.resources)
    resources = read_resources(located, configs)
    recipe = Recipe(model)
    for loaded in request.recipes:
        loaded.apply(model, recipe, {"base": checkpoint})
    unused = unused_tensors(checkpoint, architecture, recipe)
    refuse_quantized(checkpoint, recipe, unused)
    return Conversion(
        request,
        request.name or default_name(request.model, checkpoint.config),
        checkpoint,
        model,
        resources,
        {role: path for roles in located.values() for role, path in roles.items()},
        prepare(recipe, rows_per_chunk=request.rows_per_chunk),
        _warnings(unused, resources),
        time.perf_counter() - started,
    )


def default_name(folder: Path, config: Mapping[str, Any]) -> str:
    """Public name of a checkpoint: what its configuration says, else the folder's name."""
    recorded = config.get("_name_or_path")
    if isinstance(recorded, str) and recorded.strip("/"):
        return recorded.rstrip("/").rsplit("/", 1)[-1]
    return folder_name(folder)


def folder_name(folder: Path) -> str:
    """Last component of a folder's path, whatever way it was spelled."""
    return folder.resolve().name


def _warnings(unused: Sequence[str], resources: Resources) -> tuple[str, ...]:
    warnings = [change.message for change in resources.changes if not change.is_expected]
    if unused:
        warnings.append(f"tensors that no parameter uses ({len(unused)}): {', '.join(unused)}")
    return tuple(warnings)


def _resource_id(component: str, role: str) -> str:
    return f"resource/{component}/{role}"


def _resource_ids(resources: Resources, component: str) -> dict[str, str]:
    roles: Sequence[str] = tuple(resources.data.get(component, ()))
    return {role: _resource_id(component, role) for role in roles}
