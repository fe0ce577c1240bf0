"""What all requests of one server share: its settings, its engine and whether it still serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from fastapi import Request

from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.stats import Availability
from ninfer_server.admission import Slots
from ninfer_server.background import unless
from ninfer_server.engine_bridge import Generation
from ninfer_server.errors import ApiError, service_unavailable
from ninfer_server.settings import ServerSettings

T = TypeVar("T")

MAX_CONCURRENCY = 1
"""Requests that the engine executes at a time."""

_LAST_ANSWERS_S = 5.0
"""How long cancelled requests may take to tell their clients."""


class ServerState:
    """The state of one server; used on its event loop only.

    Args:
        settings: How it was started.
        engine: The engine, if it is loaded already.
    """

    def __init__(self, settings: ServerSettings, engine: Engine | None = None) -> None:
        self.settings = settings
        self.started_at = int(time.time())
        self._stopping = asyncio.Event()
        self._engine: Engine | None = None
        self._model_id = settings.model_id
        self._slots = Slots(MAX_CONCURRENCY + settings.max_pending_requests)
        self._generations: set[Generation] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        if engine is not None:
            self.attach(engine)

    @property
    def is_stopping(self) -> bool:
        """Whether the server takes no more requests and will end."""
        return self._stopping.is_set()

    @property
    def model_id(self) -> str:
        """The public name of the model.

        Raises:
            ApiError: 503: it is not known yet.
        """
        return self._model_id or self.engine().model_info.name

    def attach(self, engine: Engine) -> None:
        """Start to serve with a loaded engine."""
        self._engine = engine
        self._model_id = self._model_id or engine.model_info.name

    def is_available(self) -> bool:
        """Whether a request that comes now can be served; a full queue does not matter."""
        if self.is_stopping or self._engine is None:
            return False
        if self._engine.availability() is not Availability.READY:
            return False
        return self._engine.stats().heartbeat_age_s < self.settings.stall_s

    def engine(self) -> Engine:
        """Return the engine.

        Raises:
            ApiError: 503: it is loading, has failed, or the server stops.
        """
        if self.is_stopping:
            raise _stopping()
        if self._engine is None:
            raise service_unavailable("the model is loading")
        if self._engine.availability() is not Availability.READY:
            raise service_unavailable("the engine has failed; the server must be started again")
        return self._engine

    @contextmanager
    def generation(self) -> Iterator[Generation]:
        """Take a slot for one request; when the block ends, the request is over.

        Raises:
            ApiError: 429: no slot is free. 503: nothing can be served now.
        """
        engine = self.engine()
        slot = self._slots.take()
        generation = Generation(engine, slot, self.settings.pending_timeout_s)
        self._generations.add(generation)
        self._is_idle.clear()
        try:
            yield generation
        finally:
            generation.close()
            self._generations.discard(generation)
            if not self._generations:
                self._is_idle.set()

    async def unless_stopping(self, work: asyncio.Future[T]) -> T:
        """Wait for work that comes before a generation; it is cancelled when the server stops.

        Raises:
            ApiError: 503: the server stops.
        """
        try:
            result = await unless(self._stopping, work)
        finally:
            del work  # An error of it knows this frame: only the collector would free both.
        if result is None:
            raise _stopping()
        return result

    async def stop(self, at_once: asyncio.Event) -> None:
        """Refuse new requests, end the waiting ones, give the running ones time, then cancel them.

        Args:
            at_once: When it is set, the running requests are cancelled without further delay.
        """
        self._stopping.set()
        for generation in tuple(self._generations):
            if not generation.is_admitted:
                generation.abort(_stopping())
        await self._wait_until_idle(at_once, self.settings.shutdown_grace_s)
        for generation in tuple(self._generations):
            generation.abort(_stopping())
        await self._wait_until_idle(asyncio.Event(), _LAST_ANSWERS_S)

    async def _wait_until_idle(self, at_once: asyncio.Event, timeout_s: float) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._is_idle, at_once)]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def server_state(request: Request) -> ServerState:
    """Return the state of the server that handles a request."""
    state: ServerState = request.app.state.server
    return state


def _stopping() -> ApiError:
    return service_unavailable("the server is shutting down", close=True)
