"""Work that is done again from its beginning, where nothing is gained by recording it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Repetition:
    """Implements `ninfer_runtime.device.base.Recording`.

    Args:
        work: What to do.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.result: Any = None

    def replay(self) -> None:
        """Do the work."""
        self.result = self._work()

    def close(self) -> None:
        """Forget the result."""
        self.result = None
