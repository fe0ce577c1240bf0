"""The ASGI application: routes, and around them what every request passes through."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ninfer_runtime.engine.engine import Engine
from ninfer_server import health, models, openapi
from ninfer_server.auth import ApiKeyMiddleware
from ninfer_server.cors import CorsMiddleware
from ninfer_server.error_boundary import ErrorBoundaryMiddleware, parameter_error, routing_error
from ninfer_server.openai_chat.router import router as openai_chat_router
from ninfer_server.openai_chat.schema import ChatCompletionRequest
from ninfer_server.request_context import RequestContextMiddleware
from ninfer_server.settings import ServerSettings
from ninfer_server.state import ServerState


def create_app(engine: Engine | None, settings: ServerSettings) -> FastAPI:
    """Build the application.

    Args:
        engine: The engine, or None if `ServerState.attach` will bring it later; until then
            requests are answered with 503.
        settings: How the server was started.

    Returns:
        The application; its `ServerState` is ``app.state.server``.
    """
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            HTTPException: routing_error,
            RequestValidationError: parameter_error,
        },
    )
    app.state.server = ServerState(settings, engine)
    app.state.request_models = (ChatCompletionRequest,)
    for router in (health.router, models.router, openai_chat_router, openapi.router):
        app.include_router(router)
    # The last one added sees a request first. All are plain ASGI: a middleware that replaced
    # `receive` would hide that a client has left.
    app.add_middleware(ApiKeyMiddleware, digests=settings.api_key_digests)
    app.add_middleware(ErrorBoundaryMiddleware)
    if settings.cors:
        app.add_middleware(CorsMiddleware)
    app.add_middleware(RequestContextMiddleware)
    return app
