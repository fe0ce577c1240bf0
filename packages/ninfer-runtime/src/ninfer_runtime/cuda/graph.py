"""Recorded sequences of launches: captured once, replayed at the cost of one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ninfer_runtime.cuda.driver import check, driver


class Graph:
    """What a function launches on a stream, ready to be replayed.

    Args:
        stream: Handle of the stream to record from and to replay on.
        work: Launches on that stream. It has run once before, so that every kernel is loaded. It
            must not allocate from the driver, synchronise or read results.
        memory: Kept as long as the graph: what the recorded launches work in.

    Attributes:
        result: What the recorded run of `work` returned.
    """

    def __init__(self, stream: int, work: Callable[[], object], memory: object = None) -> None:
        self._stream = driver().CUstream(stream)
        self._memory = memory
        self._executable: Any = None
        self.result: Any = None
        graph = self._record(work)
        try:
            self._executable = check(driver().cuGraphInstantiate(graph, 0), "instantiating a graph")
        finally:
            check(driver().cuGraphDestroy(graph), "destroying a graph")
        try:
            check(driver().cuGraphUpload(self._executable, self._stream), "uploading a graph")
        except BaseException:
            self.close()
            raise

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
        """Free the graph and its memory; it must not be running. Closing twice is allowed."""
        executable, self._executable = self._executable, None
        self.result = self._memory = None
        if executable is not None:
            check(driver().cuGraphExecDestroy(executable), "destroying a graph")

    def _record(self, work: Callable[[], object]) -> Any:
        cuda = driver()
        # In this mode a call that would synchronise or allocate fails instead of silently running.
        mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with _no_collection():
            check(cuda.cuStreamBeginCapture(self._stream, mode), "beginning a capture")
            try:
                self.result = work()
            except BaseException:
                # A stream stays in capture until this is called, also where it has failed.
                _, graph = cuda.cuStreamEndCapture(self._stream)
                if graph is not None:
                    cuda.cuGraphDestroy(graph)
                raise
            return check(cuda.cuStreamEndCapture(self._stream), "ending a capture")


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected inside: what it frees may call the driver in the midst of a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
