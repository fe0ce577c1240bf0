"""``GET /openapi.json``: the interface in the OpenAPI form.

Requests are checked by our own code, so that every refusal has the error body that clients know.
The document is made from the same models.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

router = APIRouter()

_SCHEMAS = "#/components/schemas/"

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERROR_CONTENT = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}Error"}}}

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be served.", "content": _ERROR_CONTENT},
    "5XX": {"description": "The server cannot serve.", "content": _ERROR_CONTENT},
}
"""What every route documents beside its success; also keeps the framework's 422 out."""

_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


SECURITY: dict[str, Any] = {"security": [{name: []} for name in _SECURITY_SCHEMES]}
"""The ``openapi_extra`` of a route that needs a key, if the server has any."""


def json_request(model: type[BaseModel]) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route whose body is checked with `model`."""
    content = {"application/json": {"schema": {"$ref": _SCHEMAS + model.__name__}}}
    return {"requestBody": {"required": True, "content": content}, **SECURITY}


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document, which is made at the first call and does not change."""
    app: FastAPI = request.app
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title="ninfer", version=version("ninfer-server"), routes=app.routes)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(_schemas(app.state.request_models))
    components["securitySchemes"] = _SECURITY_SCHEMES
    return document


def _schemas(models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    schemas: dict[str, Any] = {"Error": _ERROR}
    for model in models:
        schema = model.model_json_schema(ref_template=_SCHEMAS + "{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    return schemas
