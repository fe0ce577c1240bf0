"""The life of a server process: load, serve, and stop gracefully when a signal comes."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from ninfer_runtime.engine.engine import Engine
from ninfer_server.app import create_app
from ninfer_server.background import on_daemon_thread, unless
from ninfer_server.listener import url_of
from ninfer_server.logs import get_logger
from ninfer_server.settings import ServerSettings
from ninfer_server.state import ServerState

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_IDLE_CONNECTION_S = 75
"""How long an idle connection is kept: longer than the proxies that reuse connections do."""

_CLOSE_CONNECTIONS_S = 5
"""How long connections may take to close after their last answer, in seconds."""

_CLOSE_ENGINE_S = 5.0
"""How long the engine may take to end the step that it is in, in seconds."""


def serve(
    listener: socket.socket,
    settings: ServerSettings,
    load: Callable[[], Engine],
    announce: Callable[[Engine, ServerState], None],
) -> None:
    """Serve until a signal comes; returns when everything has stopped.

    Requests are answered from the start, with 503 while the model loads. The first signal lets
    running requests finish for a while, the second one cancels them.

    Args:
        listener: Where to listen; it is closed.
        settings: How to serve.
        load: Makes the engine, on another thread.
        announce: Called when the server is ready.

    Raises:
        NInferError: What `load` raised.
    """
    asyncio.run(_serve(listener, settings, load, announce))


class HttpServer(uvicorn.Server):
    """The HTTP server; signals are not its business.

    Args:
        app: What it serves.
    """

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_IDLE_CONNECTION_S,
                timeout_graceful_shutdown=_CLOSE_CONNECTIONS_S,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handlers as they are."""
        yield


async def _serve(
    listener: socket.socket,
    settings: ServerSettings,
    load: Callable[[], Engine],
    announce: Callable[[Engine, ServerState], None],
) -> None:
    app = create_app(None, settings)
    state: ServerState = app.state.server
    http = HttpServer(app)
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    engine: Engine | None = None
    with _stop_signals() as (first, second):
        try:
            get_logger().info("loading the model", url=url_of(listener))
            engine = await unless(first, asyncio.wrap_future(on_daemon_thread(load, "ninfer-load")))
            if engine is not None:
                state.attach(engine)
                announce(engine, state)
                await first.wait()
            get_logger().info("shutting down")
            await state.stop(at_once=second)
        finally:
            http.should_exit = True
            await serving
            if engine is not None:
                closing = asyncio.wrap_future(on_daemon_thread(engine.close, "ninfer-close"))
                await asyncio.wait({closing}, timeout=_CLOSE_ENGINE_S)
    get_logger().info("stopped")


@contextmanager
def _stop_signals() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Yield the events that the first and the second signal to stop set."""
    first, second = asyncio.Event(), asyncio.Event()

    def note() -> None:
        (second if first.is_set() else first).set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, note)
    try:
        yield first, second
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
