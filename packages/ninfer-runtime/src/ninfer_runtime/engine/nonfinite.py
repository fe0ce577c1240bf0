"""When failures of single requests mean that the whole engine is broken."""

from __future__ import annotations

import time
from collections import deque

_WINDOW_S = 60.0
_DIFFERENT_PROMPTS = 3


class NonFiniteWatch:
    """Remembers which prompts gave logits that are not finite.

    One prompt may do that by itself. Several different ones within a minute mean that the weights
    or the device are damaged (engine specification, section 11.4).
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def record(self, token_ids: tuple[int, ...]) -> bool:
        """Remember a prompt that failed; returns whether the engine has to be given up."""
        now = time.monotonic()
        self._seen.append((now, hash(token_ids)))
        while now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        return len({prompt for _, prompt in self._seen}) >= _DIFFERENT_PROMPTS
