"""Cross-origin requests from web pages (``--cors``)."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALLOWED_HEADERS = (
    "Authorization",
    "Content-Type",
    "X-API-Key",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-user-profile-id",
)

_FIXED_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "x-request-id, request-id",
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
}


class CorsMiddleware:
    """Adds the cross-origin headers to every answer and answers every preflight itself.

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
        allowed = allowed_headers(Headers(scope=scope).get("access-control-request-headers"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_FIXED_HEADERS)
                headers["Access-Control-Allow-Headers"] = allowed
            await send(message)

        if scope["method"] == "OPTIONS":
            await send_with_headers({"type": "http.response.start", "status": 204, "headers": []})
            await send_with_headers({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, send_with_headers)


def allowed_headers(requested: str | None) -> str:
    """Return the allowed request headers: ours, then those that a preflight asks for."""
    known = {"", *(name.lower() for name in ALLOWED_HEADERS)}
    asked = [name.strip() for name in (requested or "").split(",")]
    return ", ".join([*ALLOWED_HEADERS, *(name for name in asked if name.lower() not in known)])
