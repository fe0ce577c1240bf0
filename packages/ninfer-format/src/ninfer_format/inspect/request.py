"""What the user asked ``ninfer-inspect`` to show, and which wishes go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ninfer_format.errors import UsageError
from ninfer_format.inspect.intervals import Interval


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """The options of the command; at most one view is asked for, without any it is the summary.

    Attributes:
        objects: List the objects.
        bindings: List the bindings.
        uses: List the uses.
        resources: List the resources.
        select: Glob for the lists.
        config: Show the configurations.
        resource: Show this resource.
        tensor: Show this tensor.
        rows: Which rows of it.
        cols: Which columns of it.
        verify: Check the artifact.
        diff: Compare with this artifact.
        memory: Estimate memory.
        max_context: Longest sequence in tokens, for the estimate.
        slots: Sequences held at the same time, for the estimate.
        kv_dtype: Type of stored keys and values, for the estimate.

    Raises:
        UsageError: Two views were asked for, or an option without the one it belongs to.
    """

    objects: bool = False
    bindings: bool = False
    uses: bool = False
    resources: bool = False
    select: str | None = None
    config: bool = False
    resource: str | None = None
    tensor: str | None = None
    rows: Interval | None = None
    cols: Interval | None = None
    verify: bool = False
    diff: Path | None = None
    memory: bool = False
    max_context: int | None = None
    slots: int | None = None
    kv_dtype: str | None = None

    def __post_init__(self) -> None:
        """Check the combination."""
        views = self._given("config", "resource", "tensor", "verify", "diff", "memory")
        if len(views) > 1 or (views and self.lists):
            names = ", ".join(_option(name) for name in (*self.lists, *views))
            raise UsageError(f"these cannot be combined: {names}")
        for owner, details in (
            ("tensor", self._given("rows", "cols")),
            ("memory", self._given("max_context", "slots", "kv_dtype")),
        ):
            if details and owner not in views:
                raise UsageError(f"{_option(details[0])} needs {_option(owner)}")
        if self.select is not None and not self.lists:
            raise UsageError("--select needs a list", hint="add --objects or --bindings")

    @property
    def lists(self) -> tuple[str, ...]:
        """The lists that were asked for."""
        return self._given("objects", "bindings", "uses", "resources")

    def _given(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if getattr(self, name) not in (None, False))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
