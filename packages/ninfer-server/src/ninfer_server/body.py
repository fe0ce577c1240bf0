"""Request bodies: how long they may be and what JSON they may hold."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from ninfer_runtime.text.json_values import read_json
from ninfer_server.errors import ApiError, ClientDisconnectedError, invalid_request


async def read_body(request: Request, max_bytes: int) -> bytearray:
    """Read the body of a request.

    Args:
        request: The request; its body must not have been read.
        max_bytes: Longest body, checked on the announced and on the received length.

    Raises:
        ApiError: 413 or 415.
        ClientDisconnectedError: The client left before it had sent everything.
    """
    _refuse_content_encoding(request)
    return await _read(request, max_bytes)


def parse_json_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parse strict JSON whose root is an object.

    Members keep their order, numbers their spelling, and the last of equal members wins. Refused
    beside malformed text are ``NaN`` and ``Infinity``, escaped halves of surrogate pairs, which no
    encoder could write again, and very deep nesting.

    Raises:
        ApiError: 400.
    """
    try:
        value = read_json(body.decode("utf-8"))
    except ValueError:
        raise invalid_request("body is not valid JSON") from None
    if not isinstance(value, dict):
        raise invalid_request("request body must be a JSON object")
    return value


def _refuse_content_encoding(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(
            415,
            "the body must be sent without Content-Encoding",
            wire_code="content_encoding_not_supported",
        )


async def _read(request: Request, max_bytes: int) -> bytearray:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise ClientDisconnectedError from None
    return body


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the request body is longer than {max_bytes} bytes",
        wire_code="request_too_large",
    )
