"""What the engine will allocate for an artifact; registered for ``ninfer-inspect --memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.errors import UnsupportedConfigError
from ninfer_format.memory_estimate import MemoryEstimate, MemoryItem, MemoryRequest
from ninfer_runtime.engine.options import EngineOptions

if TYPE_CHECKING:
    from ninfer_format import Artifact

TEXT = "text"
KV_DTYPE = "fp32"
"""Type of the keys and values that `ninfer_runtime.kv.KVCache` holds on the CPU."""


def estimate_memory(artifact: Artifact, request: MemoryRequest) -> MemoryEstimate:
    """Estimate what the CPU engine takes; implements `ninfer_format.memory_estimate`.

    All numbers are the engine's own: the same code computes them when it loads and runs the model.

    Args:
        artifact: The artifact; no weight is read.
        request: How the engine would be started.

    Raises:
        ContextError: The context exceeds what the model was made for.
        UnsupportedConfigError: The architecture or the type of the cache is not implemented.
        ArtifactError: The artifact does not hold the model that its configuration describes.
    """
    from ninfer_runtime.device.registry import get_device
    from ninfer_runtime.models.registry import model_memory

    if request.kv_dtype not in (None, KV_DTYPE):
        raise UnsupportedConfigError(
            "kv-dtype", request.kv_dtype, expected=f"{KV_DTYPE} on the CPU, the only engine so far"
        )
    options = EngineOptions(artifact.path, max_context=request.max_context)
    device = get_device("cpu")
    config = artifact.directory.components[TEXT].config
    positions = config.get("max_position_embeddings")
    # The architecture refuses a configuration without this number.
    max_context = options.resolve_max_context(positions) if isinstance(positions, int) else 1
    memory = model_memory(artifact, device, max_context)
    others = (name for name in artifact.directory.components if name != TEXT)
    items = (
        MemoryItem(TEXT, "weights", memory.weight_bytes, "fp32"),
        *(MemoryItem(name, "weights", 0, "not loaded by this engine") for name in others),
        MemoryItem(
            TEXT,
            "cache",
            request.slots * memory.cache_bytes,
            f"{KV_DTYPE}, {request.slots} × {max_context} tokens",
        ),
        MemoryItem(
            TEXT,
            "recurrent state",
            request.slots * memory.recurrent_bytes,
            f"fp32, {request.slots} sequences",
        ),
        MemoryItem(TEXT, "workspace", None, "not planned by this engine"),
    )
    return MemoryEstimate(
        device=device.kind,
        max_context=max_context,
        slots=request.slots,
        kv_dtype=KV_DTYPE,
        items=items,
        loading_bytes=memory.loading_bytes,
        available_bytes=device.memory().free_bytes,
        notes=_notes(request),
    )


def _notes(request: MemoryRequest) -> tuple[str, ...]:
    notes = ["caches grow with the sequence: what is shown is reached at its full length"]
    if request.slots > 1:
        notes.append("this engine holds one sequence at a time")
    return tuple(notes)
