"""What every request gets first: an id, and a path without a trailing slash."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninfer_server.ids import new_request_id

_API_PREFIX = "/v1/"


class RequestContextMiddleware:
    """Gives each request an id and sends it back as ``x-request-id`` on the API's paths.

    ``/v1/models/`` and ``/v1/models`` are one path: a redirect would break clients that post.

    Args:
        app: The application behind.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        scope["path"] = scope["path"].rstrip("/") or "/"
        is_api = scope["path"].startswith(_API_PREFIX)

        async def send_with_id(message: Message) -> None:
            if is_api and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def request_id_of(scope: Scope) -> str:
    """Return the id of the request that a scope belongs to."""
    request_id: str = scope["state"]["request_id"]
    return request_id
