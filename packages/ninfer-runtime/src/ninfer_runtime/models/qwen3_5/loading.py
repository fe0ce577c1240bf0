"""From an artifact to the text model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.errors import UnsupportedConfigError
from ninfer_runtime.device.base import Device
from ninfer_runtime.kv.formats import KVFormat
from ninfer_runtime.kv.pages import pages_for
from ninfer_runtime.kv.slots import RING
from ninfer_runtime.models.architecture import Advance, ModelMemory
from ninfer_runtime.models.parameter_source import ArtifactParameters
from ninfer_runtime.models.qwen3_5.component_config import COMPONENTS, parse_text
from ninfer_runtime.models.qwen3_5.config import ModelConfig, TextConfig
from ninfer_runtime.models.qwen3_5.model import TextModel
from ninfer_runtime.models.qwen3_5.parameters import parameters
from ninfer_runtime.models.qwen3_5.states import state_bytes
from ninfer_runtime.models.qwen3_5.weights import build_text_model
from ninfer_runtime.weights.host import HostWeights
from ninfer_runtime.weights.packed import PackedWeights

if TYPE_CHECKING:
    from ninfer_format import Artifact


def load_text_model(
    artifact: Artifact, device: Device, advance: Advance = lambda num_bytes, name: None
) -> TextModel:
    """Load the component ``text``; other components stay where they are.

    Args:
        artifact: The artifact.
        device: Where the model shall lie.
        advance: Called with bytes and a name for each weight that is loaded onto a GPU.

    Raises:
        ArtifactError: A parameter or use is not bound, or a parameter has another size.
        UnsupportedConfigError: The configuration is not one of the family.
        StartupError: The model has no full attention layer.
        CapacityError: The weights do not fit into the free memory of the device.
        UnsupportedOpError: The device has no kernel that reads them as they are stored.
    """
    config, store = _open(artifact, device, advance)
    if isinstance(store, HostWeights):
        return build_text_model(config, store)
    with store:
        return build_text_model(config, store)


def text_model_memory(
    artifact: Artifact, device: Device, capacity: int, kv_format: KVFormat
) -> ModelMemory:
    """What `load_text_model` will take, and one sequence of `capacity` tokens.

    No weight is read. Raises the same errors as `load_text_model` and as `new_state`.
    """
    config, store = _open(artifact, device)
    page_bytes, slot_bytes = state_bytes(config, device, ring=RING, kv_format=kv_format)
    return ModelMemory(
        weight_bytes=store.num_bytes,
        loading_bytes=store.loading_bytes,
        cache_bytes=pages_for(capacity) * page_bytes,
        recurrent_bytes=slot_bytes,
    )


def _open(
    artifact: Artifact, device: Device, advance: Advance = lambda num_bytes, name: None
) -> tuple[TextConfig, HostWeights | PackedWeights]:
    """The configuration, and the weights that it asks for; nothing is read yet."""
    _check_targets(artifact)
    config = _text_config(artifact)
    wanted = parameters(ModelConfig(config))
    if device.kind == "cpu":
        return config, HostWeights(wanted, ArtifactParameters(artifact, wanted), device)
    return config, PackedWeights(artifact, wanted, device, advance)


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
