"""Every error that leaves the server over HTTP: its status, its code and its JSON shape.

Nothing else in the package decides a status code of a failure. Handlers raise `ApiError` (mostly
through `invalid_request`), the engine raises `RequestError`; `error_boundary` turns both into
answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from ninfer_format.errors import NInferError
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.text.prompt import ReservedOptionError

STATUS_CLIENT_CLOSED_REQUEST = 499
"""Not a registered status: the customary one for a client that left before its answer."""

_MAX_QUOTED = 100
"""Characters of a client's own text that an error repeats; an answer must not grow with it."""

_RETRY_SOON_S = 1
_RETRY_LATER_S = 5


class ApiError(NInferError):
    """A failure that is answered with the OpenAI error body.

    Args:
        status: HTTP status.
        message: What is wrong and what is allowed.
        kind: The body's ``type``.
        wire_code: The body's ``code``; None where the field name says enough.
        param: The field of the request that is at fault.
        details: Further members of the body's ``error`` object.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        wire_code: str | None = None,
        param: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.wire_code = wire_code
        self.param = param
        self.details = dict(details or {})
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the answer, which is also the payload of an error event."""
        error = {
            "message": str(self),
            "type": self.kind,
            "param": self.param,
            "code": self.wire_code,
            **self.details,
        }
        return {"error": error}


class ClientDisconnectedError(ApiError):
    """The client closed its connection; the answer is only logged, nobody reads it."""

    def __init__(self) -> None:
        super().__init__(
            STATUS_CLIENT_CLOSED_REQUEST,
            "the client closed the connection",
            kind="request_cancelled",
            wire_code="client_disconnected",
        )


def quoted(text: str) -> str:
    """Return what a client wrote as it is shown in a message: marked, and never long."""
    if len(text) > _MAX_QUOTED:
        text = text[:_MAX_QUOTED] + "…"
    return repr(text)


def invalid_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a request that this server cannot take as it stands."""
    return ApiError(400, message, param=param, wire_code=code)


def invalid_api_key() -> ApiError:
    """Return the error for a missing or wrong key."""
    return ApiError(
        401,
        "missing or wrong API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
        wire_code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def model_not_found(model: str, served: str) -> ApiError:
    """Return the error for a request that names another model than the one that is served."""
    return ApiError(
        404,
        f"model {quoted(model)} is not served here, {served!r} is",
        param="model",
        wire_code="model_not_found",
    )


def server_overloaded(outstanding: int) -> ApiError:
    """Return the error for a request that finds all places taken."""
    return _overloaded(f"{outstanding} requests are running or waiting already")


def request_queue_timeout(waited_s: float) -> ApiError:
    """Return the error for a request that waited too long; never 408, which clients retry."""
    return _queue_timeout(f"the request was not admitted within {waited_s:g} seconds")


def service_unavailable(message: str, *, close: bool = False) -> ApiError:
    """Return the error for a server that loads, stops or has lost its engine.

    Args:
        message: Which of these it is.
        close: Ask the client to open a new connection next time.
    """
    headers = {"Retry-After": str(_RETRY_LATER_S)}
    if close:
        headers["Connection"] = "close"
    return ApiError(
        503,
        message,
        kind="server_error",
        wire_code="service_unavailable",
        headers=headers,
    )


def internal_error(request_id: str) -> ApiError:
    """Return the error for a fault of ours: a fixed text, the details stay in the log."""
    return ApiError(500, f"internal server error (request {request_id})", kind="internal_error")


def from_request_error(error: RequestError, request_id: str) -> ApiError:
    """Return how a failure inside the engine is told to the client."""
    if error.kind is RequestErrorKind.CONTEXT_LENGTH_EXCEEDED:
        sizes = {"prompt_tokens": error.prompt_tokens, "max_context": error.max_context}
        return ApiError(
            400,
            str(error),
            param="messages",
            wire_code="context_length_exceeded",
            details={name: size for name, size in sizes.items() if size is not None},
        )
    if isinstance(error, ReservedOptionError):
        return invalid_request(
            str(error),
            param=f"chat_template_kwargs.{error.option}",
            code="chat_template_option_not_supported",
        )
    if error.kind is RequestErrorKind.INVALID_PROMPT:
        return invalid_request(str(error), param="messages", code="invalid_prompt")
    if error.kind is RequestErrorKind.OVERLOADED:
        return _overloaded(str(error))
    if error.kind is RequestErrorKind.QUEUE_TIMEOUT:
        return _queue_timeout(str(error))
    if error.kind in (RequestErrorKind.UNAVAILABLE, RequestErrorKind.CANCELLED):
        # A fixed text: the engine's own may hold the text of any exception.
        return service_unavailable("the engine could not serve the request; try again later")
    return internal_error(request_id)


def error_response(error: ApiError) -> JSONResponse:
    """Return the HTTP answer for an error."""
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


def _overloaded(message: str) -> ApiError:
    return ApiError(
        429,
        message,
        kind="rate_limit_error",
        wire_code="server_overloaded",
        headers={"Retry-After": str(_RETRY_SOON_S)},
    )


def _queue_timeout(message: str) -> ApiError:
    return ApiError(
        503,
        message,
        kind="server_error",
        wire_code="request_queue_timeout",
        headers={"Retry-After": str(_RETRY_SOON_S)},
    )
