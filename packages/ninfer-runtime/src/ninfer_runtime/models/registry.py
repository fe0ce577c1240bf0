"""Architectures by the name that configurations give them, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from ninfer_format.errors import UnsupportedConfigError
from ninfer_runtime.models.architecture import Advance, Architecture, LanguageModel, ModelMemory

if TYPE_CHECKING:
    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.kv.formats import KVFormat

QWEN3_5 = "ninfer_runtime.models.qwen3_5.architecture:ARCHITECTURE"

ARCHITECTURES = {
    "Qwen3_5ForCausalLM": QWEN3_5,
    "Qwen3_5ForConditionalGeneration": QWEN3_5,
    "Qwen3_5MoeForCausalLM": QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_5,
}


def find_architecture(name: str) -> Architecture:
    """The architecture that a configuration's ``architectures`` calls `name`.

    Raises:
        UnsupportedConfigError: No architecture has this name.
    """
    target = ARCHITECTURES.get(name)
    if target is None:
        raise UnsupportedConfigError("architectures", name, expected=f"one of {known_names()}")
    module, _, attribute = target.partition(":")
    return cast(Architecture, getattr(import_module(module), attribute))


def known_names() -> str:
    """The registered names, for messages."""
    return ", ".join(ARCHITECTURES)


def load_model(
    artifact: Artifact, device: Device, advance: Advance = lambda num_bytes, name: None
) -> LanguageModel:
    """Load the text model of an artifact onto a device.

    Args:
        artifact: The artifact.
        device: Where it shall lie.
        advance: Called with bytes and a name for each weight that is loaded.

    Raises:
        ArtifactError: A parameter is not bound or has another size.
        UnsupportedConfigError: The architecture or its configuration is not implemented.
        CapacityError: The weights do not fit into the device's memory.
    """
    return _architecture_of(artifact).load(artifact, device, advance)


def model_memory(
    artifact: Artifact, device: Device, capacity: int, kv_format: KVFormat
) -> ModelMemory:
    """What `load_model` will take, and one sequence of `capacity` tokens; no weight is read.

    Raises the same errors as `load_model` and as `LanguageModel.new_state`.
    """
    return _architecture_of(artifact).memory(artifact, device, capacity, kv_format)


def _architecture_of(artifact: Artifact) -> Architecture:
    architectures = artifact.directory.components["text"].config.get("architectures")
    if not isinstance(architectures, list | tuple) or len(architectures) != 1:
        raise UnsupportedConfigError(
            "text.architectures",
            architectures,
            expected=f"a list of one of {known_names()}",
            path=artifact.path,
        )
    return find_architecture(str(architectures[0]))
