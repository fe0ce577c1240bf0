"""Answers whose content is generated: how a client is watched, and how events reach it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi.responses import Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from ninfer_server.engine_bridge import Generation
from ninfer_server.error_boundary import as_api_error
from ninfer_server.errors import ApiError, ClientDisconnectedError
from ninfer_server.logs import get_logger
from ninfer_server.state import ServerState

T = TypeVar("T")


class _Nothing(ServerSentEvent):
    """Stands for no event where the stream asks for one."""

    def encode(self) -> bytes:
        return b""


_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\u0085\u2028\u2029"}
"""Escapes of what some clients take for the end of a line; JSON escapes the other ends itself."""

KEEP_ALIVE = ServerSentEvent(comment="keep-alive", sep="\n")
NOTHING = _Nothing()


class GenerationResponse(Response):
    """Runs one generation while its client listens.

    The slot is taken when the response is called and given back when the last byte was sent, the
    client left, or anything failed.

    Args:
        state: The server.
        request_id: Of the request, for the log.
        begin: Starts the generation and returns the answer once its status is known.
    """

    def __init__(
        self,
        state: ServerState,
        request_id: str,
        begin: Callable[[Generation], Coroutine[Any, Any, Response]],
    ) -> None:
        super().__init__()
        self._state = state
        self._request_id = request_id
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ApiError: Before anything was sent.
            RequestError: Before anything was sent.
        """
        started = time.monotonic()
        with self._state.generation() as generation:
            get_logger().info("request started", id=self._request_id)
            response = await until_disconnect(receive, self._begin(generation))
            await response(scope, receive, send)
            self._log_end(generation, time.monotonic() - started)

    def _log_end(self, generation: Generation, seconds: float) -> None:
        if generation.is_running:
            as_api_error(ClientDisconnectedError(), self._request_id)
        elif generation.finished is not None:
            result = generation.finished
            get_logger().info(
                "request finished",
                id=self._request_id,
                finish_reason=result.finish_reason,
                prompt_tokens=result.prompt_tokens,
                completion_tokens=result.completion_tokens,
                seconds=seconds,
            )


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it when the client closes its connection.

    Args:
        receive: The ASGI channel; the request's body must have been read from it.
        work: What to do.

    Raises:
        ClientDisconnectedError: The client left first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnectedError
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
        # An error in them knows this frame: only the collector would free what it refers to.
        del task, working, watching


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def hold_status_line(admission: Awaitable[None], hold_s: float) -> None:
    """Wait for admission, but not so long that the client takes the silence for a failure.

    A failure within that time still gets a status of its own; later ones become events.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(hold_s):
            await admission


def event_stream(
    events: AsyncGenerator[bytes, None],
    *,
    request_id: str,
    error_event: Callable[[ApiError], bytes],
    keep_alive_s: float,
    headers: Mapping[str, str],
) -> Response:
    """Return a server-sent event stream.

    Args:
        events: Encoded events; each is sent as one write.
        request_id: Of the request, for the log.
        error_event: Encodes the event that ends a stream which failed.
        keep_alive_s: Silence after which a comment is sent, in seconds.
        headers: Further headers.
    """
    keep_alive = KeepAlive(keep_alive_s)
    guarded = _end_with_error(events, request_id, error_event)
    response = EventSourceResponse(
        keep_alive.watch(guarded),
        headers={"Cache-Control": "no-cache", **headers},
        ping=keep_alive.tick_s,
        ping_message_factory=keep_alive.due,
        sep="\n",
    )
    # HTTP/1.1 keeps connections by itself, and a server that stops must be free to say otherwise.
    del response.headers["connection"]
    return response


def encode_event(payload: Mapping[str, Any]) -> bytes:
    """Return one event whose data is a JSON document on a single line."""
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {text.translate(_LINE_ENDS)}\n\n".encode()


class KeepAlive:
    """Says when a stream has been silent for so long that a comment is due.

    Args:
        interval_s: Longest silence in seconds.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last_sent = time.monotonic()
        self.tick_s = interval_s / 5

    async def watch(self, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield `events`, noting when each one was sent."""
        async with aclosing(events):
            async for event in events:
                yield event
                self._last_sent = time.monotonic()

    def due(self) -> ServerSentEvent:
        """Return the comment if it is due, otherwise nothing; called every `tick_s`."""
        now = time.monotonic()
        # A tick is never early by more than the timer's resolution.
        if now - self._last_sent < self._interval_s - self.tick_s / 2:
            return NOTHING
        self._last_sent = now
        return KEEP_ALIVE


async def _end_with_error(
    events: AsyncGenerator[bytes, None],
    request_id: str,
    error_event: Callable[[ApiError], bytes],
) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        try:
            async for event in events:
                yield event
        except Exception as failure:
            yield error_event(as_api_error(failure, request_id))
