"""The place where every failure of a request becomes an answer and a line in the log."""

from __future__ import annotations

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ninfer_runtime.errors import RequestError
from ninfer_server.errors import (
    ApiError,
    ClientDisconnectedError,
    error_response,
    from_request_error,
    internal_error,
    invalid_request,
)
from ninfer_server.logs import describe_fault, get_logger
from ninfer_server.request_context import request_id_of


class ErrorBoundaryMiddleware:
    """Answers with the OpenAI error body whatever is raised behind it.

    Args:
        app: The application behind.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as failure:
            if scope["type"] != "http":
                raise
            error = as_api_error(failure, request_id_of(scope))
            if has_started:
                # Too late for a status: the connection must break, or half an answer looks whole.
                raise
            if not isinstance(error, ClientDisconnectedError):
                await error_response(error)(scope, receive, send)
            # It knows this frame by its traceback: only the collector would free the body.
            del error


def as_api_error(failure: Exception, request_id: str) -> ApiError:
    """Return how a failure is told to the client, and log it."""
    if isinstance(failure, ApiError):
        error = failure
    elif isinstance(failure, RequestError):
        error = from_request_error(failure, request_id)
    else:
        error = internal_error(request_id)
    if error.status == 500:
        get_logger().error("internal error", id=request_id, **describe_fault(failure))
    else:
        log = get_logger().warning if error.status > 500 else get_logger().info
        log("request failed", id=request_id, status=error.status, code=error.wire_code or "-")
    return error


async def routing_error(request: Request, failure: Exception) -> JSONResponse:
    """Answer an error of the router: unknown path, wrong method."""
    if not isinstance(failure, HTTPException):
        raise failure
    code = {404: "not_found", 405: "method_not_allowed"}.get(failure.status_code)
    message = {
        404: "there is no such path here",
        405: f"{request.method} is not allowed for this path",
    }.get(failure.status_code, failure.detail)
    return error_response(
        ApiError(failure.status_code, message, wire_code=code, headers=failure.headers)
    )


async def parameter_error(request: Request, failure: Exception) -> JSONResponse:
    """Answer a parameter that the framework itself has refused; its 422 never leaves."""
    if not isinstance(failure, RequestValidationError):
        raise failure
    return error_response(invalid_request("a parameter of the request is not valid"))
