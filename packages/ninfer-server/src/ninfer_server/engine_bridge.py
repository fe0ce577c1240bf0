"""One request at the engine, seen from the event loop.

The engine publishes on its own thread. Each publication is put into a deque and wakes the loop
once; the loop never waits for the engine, and the engine never for the loop. A `Generation` holds
its slot from before the prompt is prepared until the engine has let go of it, on every path.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.handle import GenerationHandle
from ninfer_runtime.engine.request import (
    FinishReason,
    GenerationResult,
    GenerationStart,
    OutputDelta,
    PreparedPrompt,
    PromptInput,
    PromptProgress,
    RequestOptions,
)
from ninfer_server.admission import Slot
from ninfer_server.background import on_daemon_thread
from ninfer_server.errors import ApiError, request_queue_timeout, service_unavailable

T = TypeVar("T")

EngineEvent = GenerationStart | PromptProgress | OutputDelta


@dataclass(frozen=True, slots=True)
class Published:
    """An event and when the engine published it, as monotonic time in seconds."""

    event: EngineEvent
    at: float


class Generation:
    """One request; made, used and closed on the event loop.

    Args:
        engine: Executes it.
        slot: The place it holds; `close` gives it back.
        timeout_s: How long it may take until it is admitted, from now, in seconds.

    Attributes:
        is_admitted: The engine has begun with it.
    """

    def __init__(self, engine: Engine, slot: Slot, timeout_s: float) -> None:
        self._engine = engine
        self._slot = slot
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._loop = asyncio.get_running_loop()
        self._preparation: Future[PreparedPrompt] | None = None
        self._handle: GenerationHandle | None = None
        self._outcome: asyncio.Future[GenerationResult] = self._loop.create_future()
        self._published: deque[Published] = deque()
        self._wake = asyncio.Event()
        self.is_admitted = False

    @property
    def is_running(self) -> bool:
        """Whether the request has neither finished nor failed."""
        return not self._outcome.done()

    @property
    def finished(self) -> GenerationResult | None:
        """The result of a request that has finished without an error."""
        if self.is_running or self._outcome.cancelled() or self._outcome.exception():
            return None
        return self._outcome.result()

    async def submit(self, prompt: PromptInput, options: RequestOptions, *, stream: bool) -> None:
        """Prepare the prompt on another thread and put the request into the engine's queue.

        Args:
            prompt: What to continue.
            options: How to continue it.
            stream: Every event is wanted; otherwise `events` yields the first one only.

        Raises:
            RequestError: The prompt or the options cannot be served.
            ApiError: 503: preparation took longer than the request may wait, or the server stops.
        """
        prepare = partial(self._engine.prepare, prompt)
        self._preparation = on_daemon_thread(prepare, "ninfer-prepare")
        prepared = await self._before_deadline(self._unless_aborted(self._preparation))
        sink = _LoopSink(self, is_streaming=stream)
        self._handle = self._engine.submit(prepared, options, sink, deadline=self._deadline)
        self._handle.add_done_callback(self._wake_to_settle)

    async def wait_until_admitted(self) -> None:
        """Wait until the engine has begun with the request.

        Raises:
            RequestError: It failed before.
            ApiError: 503: it waited too long, or the server stops.
        """
        if not self.is_admitted:
            await self._before_deadline(self._wait_for_publication())

    async def events(self) -> AsyncGenerator[Published, None]:
        """Yield the events in order until the request has ended; then `result` does not wait.

        Raises:
            RequestError: The request failed.
            ApiError: 503: it waited too long, or the server stops.
        """
        await self.wait_until_admitted()
        while await self._wait_for_publication():
            yield self._published.popleft()

    async def result(self) -> GenerationResult:
        """Wait for the result.

        Raises:
            RequestError: The request failed.
            ApiError: 503: it waited too long, or the server stops.
        """
        await self.wait_until_admitted()
        result = await asyncio.shield(self._outcome)
        if result.finish_reason is FinishReason.CANCELLED:
            raise service_unavailable("the request was cancelled by the server")
        return result

    def abort(self, error: ApiError) -> None:
        """End the request; whoever waits for it gets `error`."""
        if not self._outcome.done():
            self._outcome.set_exception(error)
            self._wake.set()
        if self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        """Let go of the request, cancelling it if it still runs, and give the slot back.

        The slot becomes free when neither the engine nor a thread is busy with the request.
        """
        # Without its handle the engine knows that nobody will ask for the outcome.
        handle, self._handle = self._handle, None
        preparation, self._preparation = self._preparation, None
        if handle is not None:
            handle.cancel()
            handle.add_done_callback(self._slot.release)
        elif preparation is not None:
            preparation.add_done_callback(lambda _: self._slot.release())
        else:
            self._slot.release()
        if not self._outcome.cancel() and not self._outcome.cancelled():
            # An error that nobody waited for is no fault: the client had left.
            self._outcome.exception()

    def publish(self, event: EngineEvent) -> None:
        """Take an event on the engine's thread."""
        self.is_admitted = True
        self._published.append(Published(event, time.monotonic()))
        self._loop.call_soon_threadsafe(self._wake.set)

    def _wake_to_settle(self) -> None:
        self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self._handle is None or self._outcome.done():
            return
        try:
            self._outcome.set_result(self._handle.wait(timeout=0))
        except Exception as error:
            self._outcome.set_exception(error)
        self._wake.set()

    async def _wait_for_publication(self) -> bool:
        """Wait for the next event; False when the request has ended and none is left."""
        while not self._published:
            if self._outcome.done():
                self._outcome.result()
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    async def _unless_aborted(self, preparation: Future[T]) -> T:
        preparing = asyncio.wrap_future(preparation)
        try:
            either: set[asyncio.Future[Any]] = {preparing, self._outcome}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._outcome.done():
                self._outcome.result()
            return preparing.result()
        finally:
            # Nobody asks any more what becomes of a preparation that goes on.
            preparing.cancel()
            # An error of it knows this frame: only the collector would free what it refers to.
            del preparing, preparation, either

    async def _before_deadline(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                return await work
        except TimeoutError:
            raise request_queue_timeout(self._timeout_s) from None


class _LoopSink:
    """Hands the engine's events to a generation.

    Args:
        generation: Whose events they are.
        is_streaming: Pass all of them on; otherwise only the first.
    """

    def __init__(self, generation: Generation, *, is_streaming: bool) -> None:
        self._generation = generation
        self._is_streaming = is_streaming

    def start(self, event: GenerationStart) -> None:
        """Pass the first event on."""
        self._generation.publish(event)

    def progress(self, event: PromptProgress) -> None:
        """Pass the progress of the prompt on."""
        if self._is_streaming:
            self._generation.publish(event)

    def publish(self, event: OutputDelta) -> None:
        """Pass a piece of output on."""
        if self._is_streaming:
            self._generation.publish(event)
