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
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.errors import CheckpointError, FileLimitError, UsageError
from ninfer_quant.array_module import Device
from ninfer_quant.pipeline.prepare import Preparation, prepare
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.loading import LoadedRecipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.proposal import ProposalRequest, add_proposal
from ninfer_quant.resources.collect import Resources, locate_resources, read_resources
from ninfer_quant.sources.checkpoint import (
    architecture_of,
    build_model,
    component_configs,
    refuse_absent,
    unused_tensors,
)
from ninfer_quant.sources.hub import snapshot_id
from ninfer_quant.sources.named import NamedSources
from ninfer_quant.sources.planned_store import PlannedStore, has_no_weights
from ninfer_quant.sources.quantized import refuse_quantized
from ninfer_quant.sources.safetensors_store import SafetensorsStore
from ninfer_quant.sources.store import TensorStore, WeightStore

CONVERTER = "ninfer-convert"


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """What the user asks for.

    Attributes:
        model: Checkpoint folder.
        recipe: The recipe.
        overrides: Recipes that run after it, in order.
        sources: Paths or Hub ids of what recipes read beside the model, by name.
        proposal: The proposal head to be added, if any.
        components: Components of the artifact, ``text`` among them.
        resources: Files that replace those of the folder, by role.
        name: Public name; from the configuration when None.
        rows_per_chunk: Most rows that a worker holds in memory at once.
        device: Where methods compute.
        max_file_bytes: Longest file; more is split into parts.
    """

    model: Path
    recipe: LoadedRecipe
    overrides: tuple[LoadedRecipe, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    proposal: ProposalRequest | None = None
    components: tuple[str, ...] = ("text",)
    resources: Mapping[str, Path] = field(default_factory=dict)
    name: str | None = None
    rows_per_chunk: int = 512
    device: Device = "cpu"
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
        stores: Where the weights are, by the name of the source; the model's own come first.
        model: Its logical parameters and components.
        resources: What is stored beside the weights.
        resource_files: Where the resources come from, by role.
        preparation: Objects, bindings and uses.
        warnings: What the user should know.
        seconds: How long all this took.
    """

    request: ConversionRequest
    name: str
    stores: Mapping[str, WeightStore]
    model: Model
    resources: Resources
    resource_files: Mapping[str, Path]
    preparation: Preparation
    warnings: tuple[str, ...]
    seconds: float

    @property
    def source_files(self) -> tuple[Path, ...]:
        """The files that the weights and the configuration come from, each once."""
        files = (path for store in self.stores.values() for path in store.files)
        return tuple(dict.fromkeys(files))

    @property
    def input_files(self) -> tuple[Path, ...]:
        """Every file that is read."""
        others = [recipe.path for recipe in self.request.recipes]
        if self.request.proposal is not None:
            others.append(self.request.proposal.ranking)
        return (
            *self.source_files,
            *self.resource_files.values(),
            *(path for path in others if path is not None),
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
            TensorSpec(
                target.id,
                target.shape,
                target.format,
                target.layout,
                divisors=target.divisors,
                bitrate_half_bits=target.bitrate_half_bits,
            )
            for target in targets
        ]
        return [*resources, *tensors]

    def _provenance(self, hashes: Mapping[Path, str]) -> dict[str, Any]:
        """Where the artifact comes from, in words that are the same on every machine."""
        sources = {
            name: {
                "name": source_name(store.path),
                "files": {path.name: hashes[path] for path in store.files if path in hashes},
            }
            for name, store in self.stores.items()
        }
        provenance: dict[str, Any] = {
            "converter": CONVERTER,
            "recipe": self.request.recipe.identity,
            "sources": sources,
        }
        if self.request.proposal is not None:
            provenance["proposal"] = self.request.proposal.identity
        if self.request.overrides:
            overrides = [recipe.identity for recipe in self.request.overrides]
            provenance["overrides"] = overrides
        return provenance


def plan_conversion(request: ConversionRequest, *, needs_weights: bool = True) -> Conversion:
    """Read configurations and headers, run the recipes and place every parameter.

    Args:
        request: What the user asks for.
        needs_weights: Whether the conversion shall run. To look at the plan only, a folder with a
            configuration, or with that and an index, will do, for the model and for its drafters.

    Raises:
        CheckpointError: A checkpoint is damaged, incomplete or not understood.
        UnsupportedConfigError: Its configuration is not implemented.
        ConversionError: A resource file is not what the runtime can use.
        RecipeError: A recipe asks for something that cannot be done.
        UsageError: A resource override is wrong.
    """
    started = time.perf_counter()
    base = _open_base(request.model, needs_weights=needs_weights)
    architecture = architecture_of(base)
    sources = NamedSources(
        base,
        request.sources,
        may_lack_weights=() if needs_weights else architecture.companions,
    )
    companions = {
        name: sources[name] for name in request.components if name in architecture.companions
    }
    configs = component_configs(base, architecture, request.components, companions)
    sources.configs = configs
    components = {
        name: Component(config, target=None if name == "text" else "text")
        for name, config in configs.items()
    }
    model = build_model(base, architecture, components, companions)
    located = locate_resources(
        request.model, architecture, tuple(configs), request.resources, may_lack=not needs_weights
    )
    resources = read_resources(located, configs)
    model.token_count = resources.public_tokens
    model.special_token_ids = resources.special_tokens
    recipe = Recipe(model)
    request.recipe.apply(model, recipe, sources)
    if request.proposal is not None:
        add_proposal(model, recipe, request.proposal)
    for loaded in request.overrides:
        loaded.apply(model, recipe, sources)
    refuse_absent(recipe, allow_planned=not needs_weights)
    ignored = refuse_quantized(sources.opened.values(), architecture, recipe)
    unused = [
        name
        for store in (base, *companions.values())
        for name in unused_tensors(store, architecture, recipe)
        if name not in ignored
    ]
    return Conversion(
        request,
        request.name or default_name(request.model, base.config),
        sources.opened,
        model,
        resources,
        {role: path for roles in located.values() for role, path in roles.items()},
        prepare(recipe, rows_per_chunk=request.rows_per_chunk, device=request.device),
        _warnings(unused, ignored, sources.unopened, resources),
        time.perf_counter() - started,
    )


def _open_base(folder: Path, *, needs_weights: bool) -> TensorStore:
    if not folder.is_dir():
        raise CheckpointError(
            "is not a folder",
            path=folder,
            hint="--model takes a checkpoint folder, or a Hub id such as org/name",
        )
    if not needs_weights and has_no_weights(folder):
        return PlannedStore(folder)
    return SafetensorsStore(SafetensorsCheckpoint(folder))


def default_name(folder: Path, config: Mapping[str, Any]) -> str:
    """Public name of a checkpoint: what its configuration says, else the folder's name."""
    recorded = config.get("_name_or_path")
    if isinstance(recorded, str) and recorded.strip("/"):
        return recorded.rstrip("/").rsplit("/", 1)[-1]
    snapshot = snapshot_id(folder)
    return folder.resolve().name if snapshot is None else snapshot[0].rpartition("/")[2]


def source_name(path: Path) -> str:
    """What a source is called independently of the machine.

    Returns:
        ``org/name@commit`` for a snapshot in the cache of the Hub, else the last component of the
        path, whatever way it was spelled.
    """
    snapshot = snapshot_id(path)
    return path.resolve().name if snapshot is None else "@".join(snapshot)


def _warnings(
    unused: Sequence[str], ignored: Sequence[str], unopened: Sequence[str], resources: Resources
) -> tuple[str, ...]:
    warnings = [change.message for change in resources.changes if not change.is_expected]
    if unused:
        warnings.append(f"tensors that no parameter uses ({len(unused)}): {', '.join(unused)}")
    if ignored:
        warnings.append(f"ignored by the recipe ({len(ignored)}): {', '.join(ignored)}")
    if unopened:
        warnings.append(f"sources that no recipe has asked for: {', '.join(unopened)}")
    return tuple(warnings)


def _resource_id(component: str, role: str) -> str:
    return f"resource/{component}/{role}"


def _resource_ids(resources: Resources, component: str) -> dict[str, str]:
    roles: Sequence[str] = tuple(resources.data.get(component, ()))
    return {role: _resource_id(component, role) for role in roles}
