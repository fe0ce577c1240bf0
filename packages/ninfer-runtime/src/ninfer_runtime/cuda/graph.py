"""Recorded sequences of launches: captured once, replayed at the cost of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ninfer_runtime.cuda.driver import check, driver


class Graph:
    """What a function launches on a stream, ready to be replayed.

    Args:
        stream: Handle of the stream to record from and to replay on.
        work: Launches on that stream. It has run once before, so that every kernel is loaded. It
            must not allocate, synchronise or read results.
    """

    def __init__(self, stream: int, work: Callable[[], object]) -> None:
        self._stream = driver().CUstream(stream)
        graph = self._record(work)
        self._executable = check(driver().cuGraphInstantiate(graph, 0), "instantiating a graph")
        check(driver().cuGraphDestroy(graph), "destroying a graph")
        check(driver().cuGraphUpload(self._executable, self._stream), "uploading a graph")

    def replay(self) -> None:
        """Queue the recorded work on the stream."""
        check(driver().cuGraphLaunch(self._executable, self._stream), "launching a graph")

    def update(self, work: Callable[[], object]) -> None:
        """Record again and replace what is replayed; the order of the launches must not change.

        Raises:
            DeviceError: The work has another order, or kernels with other resources.
        """
        graph = self._record(work)
        try:
            check(driver().cuGraphExecUpdate(self._executable, graph), "updating a graph")
        finally:
            check(driver().cuGraphDestroy(graph), "destroying a graph")

    def close(self) -> None:
        """Free the graph; it must not be running."""
        check(driver().cuGraphExecDestroy(self._executable), "destroying a graph")

    def _record(self, work: Callable[[], object]) -> Any:
        cuda = driver()
        # In this mode a call that would synchronise or allocate fails instead of silently running.
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(cuda.cuStreamBeginCapture(self._stream, mode), "beginning a capture")
        try:
            work()
        except BaseException:
            cuda.cuStreamEndCapture(self._stream)
            raise
        return check(cuda.cuStreamEndCapture(self._stream), "ending a capture")
