"""How many requests the server holds at once, running and waiting together."""

from __future__ import annotations

import threading

from ninfer_server.errors import server_overloaded


class Slots:
    """A fixed number of places for requests; safe to use from any thread.

    Args:
        capacity: Requests that run and that wait, together.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Number of places that are taken."""
        return self._taken

    def take(self) -> Slot:
        """Take a place.

        Raises:
            ApiError: 429: none is free.
        """
        with self._lock:
            if self._taken >= self._capacity:
                raise server_overloaded(self._capacity)
            self._taken += 1
        return Slot(self)

    def _give_back(self, slot: Slot) -> None:
        with self._lock:
            if not slot.released:
                slot.released = True
                self._taken -= 1


class Slot:
    """One taken place; releasing it more than once changes nothing.

    Args:
        slots: Where it belongs.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.released = False

    def release(self) -> None:
        """Give the place back."""
        self._slots._give_back(self)
