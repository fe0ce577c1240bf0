"""From an artifact to the text model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.errors import UnsupportedConfigError
from ninfer_runtime.device.base import Device
from ninfer_runtime.models.architecture import ModelMemory
from ninfer_runtime.models.parameter_source import ArtifactParameters
from ninfer_runtime.models.qwen3_5.component_config import COMPONENTS, parse_text
from ninfer_runtime.models.qwen3_5.config import ModelConfig, TextConfig
from ninfer_runtime.models.qwen3_5.model import TextModel, new_state
from ninfer_runtime.models.qwen3_5.parameters import parameters
from ninfer_runtime.models.qwen3_5.weights import build_text_model, weight_memory

if TYPE_CHECKING:
    from ninfer_format import Artifact


def load_text_model(artifact: Artifact, device: Device) -> TextModel:
    """Load the component ``text``; other components stay where they are.

    Raises:
        ArtifactError: A parameter or use is not bound, or a parameter has another size.
        UnsupportedConfigError: The configuration is not one of the family.
        StartupError: The model has no full attention layer.
        CapacityError: The weights do not fit into the free memory of the device.
    """
    config, source = _open(artifact)
    return build_text_model(config, source, device)


def text_model_memory(artifact: Artifact, device: Device, capacity: int) -> ModelMemory:
    """What `load_text_model` will take, and one sequence of `capacity` tokens.

    No weight is read. Raises the same errors as `load_text_model`.
    """
    config, source = _open(artifact)
    weight_bytes, loading_bytes = weight_memory(config, source, device)
    state = new_state(config, capacity, device)
    return ModelMemory(
        weight_bytes=weight_bytes,
        loading_bytes=loading_bytes,
        cache_bytes=sum(cache.largest_bytes for cache in state.caches),
        recurrent_bytes=sum(recurrent.num_bytes for recurrent in state.recurrent),
    )


def _open(artifact: Artifact) -> tuple[TextConfig, ArtifactParameters]:
    """The configuration, and the parameters that it asks for."""
    _check_targets(artifact)
    config = _text_config(artifact)
    return config, ArtifactParameters(artifact, parameters(ModelConfig(config)))


def _check_targets(artifact: Artifact) -> None:
    for name, component in artifact.directory.components.items():
        if name in COMPONENTS and name != "text" and component.target != "text":
            raise UnsupportedConfigError(
                f"{name}.target", component.target, expected="'text'", path=artifact.path
            )


def _text_config(artifact: Artifact) -> TextConfig:
    components = artifact.directory.components
    try:
        # The text's configuration holds the attention geometry for the draft layer's sake too.
        return parse_text(components["text"].config, with_mtp="mtp" in components)
    except UnsupportedConfigError as error:
        raise UnsupportedConfigError(
            error.key, error.value, expected=error.expected, path=artifact.path
        ) from None
