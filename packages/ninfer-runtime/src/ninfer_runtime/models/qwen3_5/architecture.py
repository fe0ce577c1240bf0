"""The family as the converter and the loader see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ninfer_runtime.models.architecture import (
    Architecture,
    ComponentConfigs,
    LanguageModel,
    LogicalParameter,
    SourceView,
)
from ninfer_runtime.models.qwen3_5 import parameters, sources
from ninfer_runtime.models.qwen3_5.checkpoint_config import (
    DENSE_ARCHITECTURES,
    normalise_components,
)
from ninfer_runtime.models.qwen3_5.component_config import parse_components

if TYPE_CHECKING:
    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device

RESOURCE_ROLES = {
    "text": (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    ),
    "vision": ("preprocessor_config.json", "video_preprocessor_config.json"),
}


class Qwen35Architecture:
    """Implements `ninfer_runtime.models.architecture.Architecture`; see there for contracts."""

    @property
    def checkpoint_architectures(self) -> tuple[str, ...]:
        """Names in a checkpoint's ``architectures`` that this family converts."""
        return DENSE_ARCHITECTURES

    def component_configs(
        self, checkpoint_config: Mapping[str, Any], components: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Normalise a checkpoint's ``config.json`` to the artifact's component configs."""
        return normalise_components(checkpoint_config, components)

    def parameters(self, configs: ComponentConfigs) -> tuple[LogicalParameter, ...]:
        """All logical parameters of the components in `configs`, in canonical order."""
        return parameters.parameters(parse_components(configs))

    def packing_groups(self, configs: ComponentConfigs) -> tuple[tuple[str, ...], ...]:
        """Parameter names that may share one parent object, widest groups first."""
        return parameters.packing_groups(parse_components(configs))

    def source_views(
        self, configs: ComponentConfigs, tensor_names: Collection[str]
    ) -> dict[str, SourceView]:
        """Where each logical parameter lies in a checkpoint that has `tensor_names`."""
        return sources.source_views(parse_components(configs), tensor_names)

    def tensor_component(self, tensor_name: str) -> str:
        """The component that a checkpoint's tensor belongs to; ``text`` if to no other."""
        return sources.tensor_component(tensor_name)

    def resource_roles(self, component: str) -> tuple[str, ...]:
        """Files beside the weights that the component needs."""
        return RESOURCE_ROLES.get(component, ())

    def load(self, artifact: Artifact, device: Device) -> LanguageModel:
        """Bind the parameters of `artifact` and build the text model on `device`."""
        # The converter uses this object too and needs none of the layers.
        from ninfer_runtime.models.qwen3_5.loading import load_text_model

        return load_text_model(artifact, device)


ARCHITECTURE: Architecture = Qwen35Architecture()
