"""Authentication by API key, before anything of the request's body is read."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from ninfer_server.errors import invalid_api_key
from ninfer_server.settings import digest_api_key

PUBLIC_PATHS = frozenset({"/", "/health", "/metrics", "/openapi.json"})

Headers = Iterable[tuple[bytes, bytes]]


class ApiKeyMiddleware:
    """Lets a request pass that carries one of the keys, or that needs none.

    Args:
        app: The application behind.
        digests: What `settings.digest_api_keys` returned; empty lets everything pass.
    """

    def __init__(self, app: ASGIApp, digests: tuple[bytes, ...]) -> None:
        self._app = app
        self._digests = digests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request.

        Raises:
            ApiError: 401.
        """
        if scope["type"] == "http" and not self._admits(scope):
            raise invalid_api_key()
        await self._app(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        if not self._digests or _is_public(scope):
            return True
        return any(self._is_known(key) for key in offered_keys(scope["headers"]))

    def _is_known(self, key: bytes) -> bool:
        digest = digest_api_key(key)
        # Every digest is compared, so that the time does not tell which one matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def offered_keys(headers: Headers) -> list[bytes]:
    """Return the keys that a request carries in ``authorization`` and ``x-api-key``."""
    keys = []
    for name, value in headers:
        if name == b"x-api-key":
            keys.append(value.strip(b" \t"))
        elif name == b"authorization":
            scheme, _, key = value.strip(b" \t").replace(b"\t", b" ", 1).partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.strip(b" \t"))
    return [key for key in keys if key]


def _is_public(scope: Scope) -> bool:
    return scope["path"] in PUBLIC_PATHS or scope["method"] == "OPTIONS"
