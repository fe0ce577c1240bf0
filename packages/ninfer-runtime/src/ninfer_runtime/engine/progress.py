"""How the engine shows what takes time while it starts, without knowing where it is shown."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Progress(Protocol):
    """One piece of work of known size; `ninfer_format.commandline.Progress` is one."""

    def advance(self, amount: int, item: str = "") -> None:
        """Count `amount` more units as done; `item` names what is being worked on now."""
        ...


class ShowProgress(Protocol):
    """Begins to show a piece of work."""

    def __call__(
        self, description: str, total: int, /, *, in_bytes: bool = False
    ) -> AbstractContextManager[Progress]:
        """Show work of `total` units until the context is left."""
        ...


class _Nothing:
    def advance(self, amount: int, item: str = "") -> None:
        """Show nothing."""


def show_nothing(
    description: str, total: int, /, *, in_bytes: bool = False
) -> AbstractContextManager[Progress]:
    """Show nothing; a `ShowProgress`."""
    return nullcontext(_Nothing())
