"""What ``ninfer-inspect --memory`` asks of an inference engine.

This package knows files only. What an engine will allocate, the engine itself has to say: a package
with one registers a `MemoryEstimator` under the entry point group `ENTRY_POINT_GROUP`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ninfer_format.errors import ExitCode, NInferError

if TYPE_CHECKING:
    from ninfer_format.container.artifact import Artifact

ENTRY_POINT_GROUP = "ninfer_format.memory_estimator"

Purpose = Literal["weights", "cache", "recurrent state", "workspace"]


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """How the engine would be started.

    Attributes:
        max_context: Longest sequence in tokens; None is the engine's default.
        slots: Sequences that are held at the same time.
        kv_dtype: Type of stored keys and values; None is the engine's default.
    """

    max_context: int | None = None
    slots: int = 1
    kv_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One use of memory.

    Attributes:
        component: The component of the artifact that needs it.
        purpose: What it holds.
        num_bytes: Its size; None if the engine does not plan it.
        detail: How it is stored, or why it is not.
    """

    component: str
    purpose: Purpose
    num_bytes: int | None
    detail: str

    def to_json(self) -> dict[str, Any]:
        """The item as a JSON object."""
        return {
            "component": self.component,
            "purpose": self.purpose,
            "bytes": self.num_bytes,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What an engine will allocate.

    Attributes:
        device: Kind of the device, for example ``cpu``, whose memory is the host's.
        max_context: Longest sequence in tokens, decided.
        slots: Sequences that are held at the same time.
        kv_dtype: Type of stored keys and values.
        items: Every use of memory that is known.
        loading_bytes: The most that the weights take while they are loaded.
        available_bytes: What the device has left now.
        notes: What else the user should know.
    """

    device: str
    max_context: int
    slots: int
    kv_dtype: str
    items: tuple[MemoryItem, ...]
    loading_bytes: int
    available_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """All known uses together, when every sequence has reached its full length."""
        return sum(item.num_bytes or 0 for item in self.items)


class MemoryEstimator(Protocol):
    """Says what an engine will allocate for an artifact, without loading it."""

    def __call__(self, artifact: Artifact, request: MemoryRequest) -> MemoryEstimate:
        """Estimate.

        Raises:
            NInferError: The engine cannot run the artifact like this.
        """
        ...


class EstimatorMissingError(NInferError):
    """No engine is installed."""

    code = "estimator_missing"
    exit_code = ExitCode.UNAVAILABLE


def find_estimator() -> MemoryEstimator:
    """The estimator of the engine that is installed.

    Raises:
        EstimatorMissingError: There is none.
    """
    found = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)
    if not found:
        raise EstimatorMissingError(
            "--memory needs an inference engine, and none is installed",
            hint="install ninfer-runtime",
        )
    return cast(MemoryEstimator, found[0].load())
