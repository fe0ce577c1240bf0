"""Device memory that is taken once and handed out again and again.

Inside a captured graph nothing may allocate, so ops take their temporary memory from an arena. The
arithmetic is kept apart from the device, so that it is tested without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ninfer_runtime.errors import DeviceError

ALIGNMENT = 256


class Arena:
    """A block of memory given out from its start, and taken back as a whole.

    Args:
        address: First byte; a multiple of `ALIGNMENT`.
        num_bytes: Length.
        name: What it is for, in errors.
    """

    def __init__(self, address: int, num_bytes: int, name: str) -> None:
        if address % ALIGNMENT:
            raise DeviceError(f"{name} begins at {address:#x}, not a multiple of {ALIGNMENT}")
        self.address = address
        self.num_bytes = num_bytes
        self.name = name
        self.used_bytes = 0
        self.peak_bytes = 0

    def take(self, num_bytes: int) -> int:
        """The address of `num_bytes` more bytes, at a multiple of `ALIGNMENT`.

        Raises:
            DeviceError: Too little is left.
        """
        begin = self.used_bytes
        end = begin + -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if end > self.num_bytes:
            raise DeviceError(
                f"{self.name} of {self.num_bytes} bytes has {self.num_bytes - begin} left,"
                f" {num_bytes} are needed"
            )
        self.used_bytes = end
        self.peak_bytes = max(self.peak_bytes, end)
        return self.address + begin

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Take back at the end what is taken inside; later work on the stream may then reuse it."""
        begin = self.used_bytes
        try:
            yield
        finally:
            self.used_bytes = begin
