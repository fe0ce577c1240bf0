"""From an artifact on disk to the parts of an engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ninfer_runtime.engine.model_info import ModelInfo, describe
from ninfer_runtime.engine.options import Backend, EngineOptions
from ninfer_runtime.errors import CapacityError, StartupError

if TYPE_CHECKING:
    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.engine.numpy_program import NumpyProgram
    from ninfer_runtime.models.architecture import LanguageModel
    from ninfer_runtime.text.frontend import Frontend


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to be executed.

    Attributes:
        program: Executes its sequences.
        frontend: Its text side.
        info: Facts about it.
        options: The options it was loaded with, the backend decided.
    """

    program: NumpyProgram
    frontend: Frontend
    info: ModelInfo
    options: EngineOptions


def load(options: EngineOptions) -> LoadedModel:
    """Open the artifact of `options` and load its text model.

    Raises:
        StartupError: The options do not fit the artifact or this host.
        CapacityError: The weights, or beside them one sequence, do not fit into memory.
        ArtifactError: The artifact is damaged.
        UnsupportedConfigError: The artifact's model is not implemented.
        DeviceError: The backend is not available.
    """
    from ninfer_format import open_artifact
    from ninfer_runtime.engine.numpy_program import NumpyProgram
    from ninfer_runtime.models.registry import load_model

    started = time.monotonic()
    options = replace(options, backend=_resolve_backend(options.backend))
    with open_artifact(options.model) as artifact:
        device = _open_device(options.backend, options.device)
        # The text side first: it takes no time and may refuse the artifact or the template.
        frontend = _open_frontend(artifact, options)
        model = load_model(artifact, device)
        _check_sequence_memory(model, device, options)
        info = describe(
            artifact,
            public_tokens=frontend.tokenizer.public_tokens,
            load_s=time.monotonic() - started,
        )
        return LoadedModel(NumpyProgram(model, options.prefill_chunk), frontend, info, options)


def load_frontend(options: EngineOptions) -> Frontend:
    """Load the text side of the artifact of `options` only.

    Raises:
        StartupError: The artifact has no text component, or the options do not fit it.
        ArtifactError: The artifact is damaged.
    """
    from ninfer_format import open_artifact

    with open_artifact(options.model) as artifact:
        return _open_frontend(artifact, options)


def _open_frontend(artifact: Artifact, options: EngineOptions) -> Frontend:
    """Build the text side and check all that needs no weights."""
    from ninfer_runtime.text.frontend import Frontend

    _require_text(artifact)
    _check_context(artifact, options)
    frontend = Frontend.from_artifact(artifact, options.chat_template)
    _check_vocabulary(artifact, frontend)
    return frontend


def _require_text(artifact: Artifact) -> None:
    """Refuse an artifact without a text component.

    Raises:
        StartupError: ``component_missing``.
    """
    if "text" not in artifact.directory.components:
        raise StartupError(
            "component_missing", "artifact has no component text", path=str(artifact.path)
        )


def _check_context(artifact: Artifact, options: EngineOptions) -> None:
    """Refuse too long a context before weights are read, which may take minutes."""
    positions = artifact.directory.components["text"].config.get("max_position_embeddings")
    # The architecture checks its configuration itself when the model is loaded.
    if isinstance(positions, int):
        options.resolve_max_context(positions)


def _check_vocabulary(artifact: Artifact, frontend: Frontend) -> None:
    """Refuse a tokenizer with ids that the model has no rows for, before weights are read."""
    from ninfer_format import ArtifactError

    vocab_size = artifact.directory.components["text"].config.get("vocab_size")
    public_tokens = frontend.tokenizer.public_tokens
    if isinstance(vocab_size, int) and public_tokens > vocab_size:
        raise ArtifactError(
            "reference",
            "the tokenizer does not fit the model: number of tokens",
            expected=f"at most vocab_size {vocab_size}",
            found=public_tokens,
            path=artifact.path,
        )


def _check_sequence_memory(model: LanguageModel, device: Device, options: EngineOptions) -> None:
    """Refuse a context whose state does not fit beside the weights (engine specification, 2.7)."""
    needed = model.state_bytes(options.resolve_max_context(model.max_position_embeddings))
    free = device.memory().free_bytes
    if needed > free:
        raise CapacityError(
            f"one sequence needs {needed} bytes of {device.kind} memory after the weights, "
            f"{free} are free",
            needed_bytes=needed,
            free_bytes=free,
            hint="free memory or reduce the context",
        )


def _resolve_backend(backend: Backend) -> Backend:
    """Decide what ``auto`` is: the only backend that every op has an implementation for."""
    return "cpu" if backend == "auto" else backend


def _open_device(backend: Backend, index: int) -> Device:
    """Open the device that executes a model.

    Args:
        backend: Kind of device; not ``auto``.
        index: Number of the device among those of its kind.

    Raises:
        DeviceError: The backend is not available.
        StartupError: ``device``: there is no device of this number.
    """
    from ninfer_runtime.device.registry import get_device

    device = get_device(backend)
    if device.index != index:
        raise StartupError(
            "device",
            f"there is no {device.kind} device {index}",
            hint=f"use device {device.index}",
        )
    return device
