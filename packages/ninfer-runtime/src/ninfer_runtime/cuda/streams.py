"""Streams and the time between two points on one."""

from __future__ import annotations

from typing import Any

from ninfer_runtime.cuda.driver import check, driver


class Stream:
    """A queue of device work that does not wait for other queues."""

    def __init__(self) -> None:
        cuda = driver()
        flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = check(cuda.cuStreamCreate(flags), "creating a stream")
        self.handle = int(self._stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version and handle, by which other libraries take the stream for their own work."""
        return (0, self.handle)

    def synchronize(self) -> None:
        """Wait until all work on the stream is done.

        Raises:
            DeviceError: A kernel failed.
        """
        check(driver().cuStreamSynchronize(self._stream), "work on a stream")

    def wait(self, event: Event) -> None:
        """Let later work on this stream begin only when a point of another one has been passed."""
        check(driver().cuStreamWaitEvent(self._stream, event._event, 0), "waiting for an event")

    def record(self) -> Event:
        """A point behind all work that was queued so far."""
        return Event(self._stream)


class Event:
    """A point in the work of a stream, with its time."""

    def __init__(self, stream: Any) -> None:
        cuda = driver()
        flags = cuda.CUevent_flags.CU_EVENT_DEFAULT
        self._event = check(cuda.cuEventCreate(flags), "creating an event")
        check(cuda.cuEventRecord(self._event, stream), "recording an event")

    def __del__(self) -> None:
        driver().cuEventDestroy(self._event)

    def wait(self) -> None:
        """Wait until the point has been passed.

        Raises:
            DeviceError: A kernel before it failed.
        """
        check(driver().cuEventSynchronize(self._event), "work on a stream")

    def ms_since(self, earlier: Event) -> float:
        """Milliseconds from an earlier point of the stream; both have been passed."""
        elapsed = check(
            driver().cuEventElapsedTime(earlier._event, self._event), "timing of events"
        )
        return float(elapsed)
