"""What the engine will allocate for an artifact; registered for ``ninfer-inspect --memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.memory_estimate import MemoryEstimate, MemoryItem, MemoryRequest
from ninfer_runtime.engine.options import EngineOptions

if TYPE_CHECKING:
    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.models.architecture import ModelMemory

TEXT = "text"


def estimate_memory(artifact: Artifact, request: MemoryRequest) -> MemoryEstimate:
    """Estimate what the engine takes; implements `ninfer_format.memory_estimate`.

    All numbers are the engine's own: the same code computes them when it loads and runs the model,
    on the device that it would take (NINFER_BACKEND, else a GPU if there is one).

    Args:
        artifact: The artifact; no weight is read.
        request: How the engine would be started.

    Raises:
        ContextError: The context exceeds what the model was made for.
        StartupError: ``kv_dtype``: the device has no cache of this type.
        UnsupportedConfigError: The architecture is not implemented.
        ArtifactError: The artifact does not hold the model that its configuration describes.
        DeviceError: The device is not available.
        UnsupportedOpError: The device cannot run this model.
    """
    from ninfer_runtime import environment
    from ninfer_runtime.engine.loading import open_device, resolve_kv_format
    from ninfer_runtime.engine.memory_plan import choose_prefill_chunk
    from ninfer_runtime.models.registry import model_memory

    device = open_device(environment.backend() or "auto", 0)
    kv_format = resolve_kv_format(request.kv_dtype, device)
    options = EngineOptions(artifact.path, max_context=request.max_context)
    config = artifact.directory.components[TEXT].config
    positions = config.get("max_position_embeddings")
    # The architecture refuses a configuration without this number.
    max_context = options.resolve_max_context(positions) if isinstance(positions, int) else 1
    memory = model_memory(artifact, device, max_context, kv_format)
    others = (name for name in artifact.directory.components if name != TEXT)
    weights = "fp32" if device.kind == "cpu" else "as stored"
    items = (
        MemoryItem(TEXT, "weights", memory.weight_bytes, weights),
        *(MemoryItem(name, "weights", 0, "not loaded by this engine") for name in others),
        *_state_items(memory, request.slots, f"{kv_format.name}, {request.slots} × {max_context}"),
        _workspace(device, choose_prefill_chunk(options, memory, device)),
    )
    return MemoryEstimate(
        device=device.kind,
        max_context=max_context,
        slots=request.slots,
        kv_dtype=kv_format.name,
        items=items,
        loading_bytes=memory.loading_bytes,
        available_bytes=device.memory().free_bytes,
        notes=_notes(request),
    )


def _state_items(memory: ModelMemory, slots: int, cache: str) -> tuple[MemoryItem, MemoryItem]:
    """What all sequences together leave behind."""
    recurrent_bytes = slots * memory.recurrent_bytes
    return (
        MemoryItem(TEXT, "cache", slots * memory.cache_bytes, f"{cache} tokens"),
        MemoryItem(TEXT, "recurrent state", recurrent_bytes, f"fp32, {slots} sequences"),
    )


def _workspace(device: Device, chunk: int) -> MemoryItem:
    from ninfer_runtime.engine.memory_plan import execution_bytes

    if device.kind == "cpu":
        return MemoryItem(TEXT, "workspace", None, "not planned on the CPU")
    detail = f"set aside, for chunks of {chunk} tokens"
    return MemoryItem(TEXT, "workspace", execution_bytes(device, chunk), detail)


def _notes(request: MemoryRequest) -> tuple[str, ...]:
    if request.slots == 1:
        return ()
    return ("this engine runs one sequence at a time",)
