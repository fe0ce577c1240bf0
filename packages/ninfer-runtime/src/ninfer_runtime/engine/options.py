"""What an engine is built from, and which of it can be checked before a model is opened."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ninfer_runtime.errors import ContextError, StartupError

Backend = Literal["auto", "cpu", "cuda"]

PREFILL_CHUNK_MULTIPLE = 128


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an engine, checked when they are made.

    Attributes:
        model: The artifact.
        backend: Which device executes the model; ``auto`` takes the best one that is there.
        device: Index of the device among those of its kind.
        max_context: Longest sequence (prompt and output) in tokens; None takes
            `default_max_context`, lowered to the model's limit.
        default_max_context: See `max_context`.
        prefill_chunk: Prompt tokens executed at a time, a multiple of 128; None takes 1024, on a GPU
            `gpu_prefill_chunk`.
        gpu_prefill_chunk: See `prefill_chunk`; halved until everything fits.
        kv_dtype: How keys and values are stored, a name of `ninfer_runtime.kv.formats.kv_formats`;
            None takes the default of the device: ``fp32`` on the CPU, ``bf16`` on a GPU.
        use_cuda_graph: Whether a GPU runs recorded steps; without, each kernel is launched alone.
        max_pending_requests: Requests that may wait beside the running one.
        pending_timeout_s: How long one may wait, in seconds.
        chat_template: File with a template to use instead of the artifact's own.

    Raises:
        StartupError: A value is outside its domain.
    """

    model: Path
    backend: Backend = "auto"
    device: int = 0
    max_context: int | None = None
    default_max_context: int = 2048
    prefill_chunk: int | None = None
    gpu_prefill_chunk: int = 1024
    kv_dtype: str | None = None
    use_cuda_graph: bool = True
    max_pending_requests: int = 16
    pending_timeout_s: float = 30.0
    chat_template: Path | None = None

    def __post_init__(self) -> None:
        """Check everything that needs no model."""
        if self.backend not in get_args(Backend):
            allowed = ", ".join(get_args(Backend))
            raise StartupError("backend", f"backend {self.backend!r} is not one of {allowed}")
        if self.device < 0:
            raise StartupError("device_domain", f"device {self.device} is below 0")
        for name in ("max_context", "default_max_context"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise StartupError("context_domain", f"{name} {value} must be at least 1")
        for name in ("prefill_chunk", "gpu_prefill_chunk"):
            value = getattr(self, name)
            if value is not None and (value < 1 or value % PREFILL_CHUNK_MULTIPLE):
                raise StartupError(
                    "chunk_alignment",
                    f"{name} must be a positive multiple of {PREFILL_CHUNK_MULTIPLE}, "
                    f"found {value}",
                )
        if self.max_pending_requests < 1:
            raise StartupError(
                "pending_domain",
                f"max_pending_requests {self.max_pending_requests} must be at least 1",
            )
        if not (math.isfinite(self.pending_timeout_s) and self.pending_timeout_s > 0):
            raise StartupError(
                "pending_domain",
                f"pending_timeout_s {self.pending_timeout_s} must be finite and above 0",
            )

    def resolve_max_context(self, max_position_embeddings: int) -> int:
        """Decide the longest sequence for a model, in tokens.

        Args:
            max_position_embeddings: Longest sequence in tokens that the model was made for.

        Raises:
            ContextError: `max_context` was given and exceeds the model.
        """
        if self.max_context is None:
            return min(self.default_max_context, max_position_embeddings)
        if self.max_context > max_position_embeddings:
            raise ContextError(self.max_context, max_position_embeddings)
        return self.max_context
