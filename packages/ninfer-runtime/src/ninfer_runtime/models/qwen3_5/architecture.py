"""The family as the converter and the loader see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ninfer_runtime.models.architecture import (
    Advance,
    Architecture,
    ComponentConfigs,
    LanguageModel,
    LayeredText,
    LogicalParameter,
    ModelMemory,
    SourceView,
)
from ninfer_runtime.models.qwen3_5 import parameters, sources
from ninfer_runtime.models.qwen3_5.checkpoint_config import (
    DENSE_ARCHITECTURES,
    MOE_ARCHITECTURES,
    normalise_components,
)
from ninfer_runtime.models.qwen3_5.component_config import parse_components
from ninfer_runtime.models.qwen3_5.draft_config import DFLASH, DFLASH2

if TYPE_CHECKING:
    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.kv.formats import KVFormat
    from ninfer_runtime.models.parameter_source import ParameterSource
    from ninfer_runtime.weights.store import WeightStore

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
        return DENSE_ARCHITECTURES + MOE_ARCHITECTURES

    def component_configs(
        self,
        checkpoint_config: Mapping[str, Any],
        components: Sequence[str],
        companions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Normalise a checkpoint's ``config.json`` to the artifact's component configs."""
        return normalise_components(checkpoint_config, components, companions)

    @property
    def companions(self) -> tuple[str, ...]:
        """Components that have checkpoints of their own."""
        return DFLASH, DFLASH2

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

    def memory(
        self, artifact: Artifact, device: Device, capacity: int, kv_format: KVFormat
    ) -> ModelMemory:
        """What `load` will take, and one sequence of `capacity` tokens."""
        from ninfer_runtime.models.qwen3_5.loading import text_model_memory

        return text_model_memory(artifact, device, capacity, kv_format)

    def layered(
        self, configs: ComponentConfigs, source: ParameterSource, device: Device
    ) -> LayeredText:
        """The text model of which one layer is loaded at a time."""
        from ninfer_runtime.models.qwen3_5.layered import LayeredTextModel

        return LayeredTextModel(parse_components(configs).text, source, device)

    def build(self, configs: ComponentConfigs, store: WeightStore) -> LanguageModel:
        """Build the text model of the weights in a store, on its device."""
        from ninfer_runtime.models.qwen3_5.weights import build_text_model

        return build_text_model(parse_components(configs).text, store)

    def load(self, artifact: Artifact, device: Device, advance: Advance) -> LanguageModel:
        """Bind the parameters of `artifact` and build the text model on `device`."""
        # The converter uses this object too and needs none of the layers.
        from ninfer_runtime.models.qwen3_5.loading import load_text_model

        return load_text_model(artifact, device, advance)


ARCHITECTURE: Architecture = Qwen35Architecture()
