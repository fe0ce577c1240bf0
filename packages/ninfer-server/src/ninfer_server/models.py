"""``GET /v1/models``: the one model of this server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from ninfer_server.errors import model_not_found
from ninfer_server.openapi import ERRORS, SECURITY
from ninfer_server.state import ServerState, server_state

router = APIRouter()


@router.get("/v1/models", responses=ERRORS, openapi_extra=SECURITY)
async def list_models(request: Request) -> dict[str, Any]:
    """List the model that this server has loaded."""
    return {"object": "list", "data": [_entry(server_state(request))]}


@router.get("/v1/models/{model_id:path}", responses=ERRORS, openapi_extra=SECURITY)
async def retrieve_model(request: Request, model_id: str) -> dict[str, Any]:
    """Describe the model that this server has loaded."""
    state = server_state(request)
    if model_id != state.model_id:
        raise model_not_found(model_id, state.model_id)
    return _entry(state)


def _entry(state: ServerState) -> dict[str, Any]:
    engine = state.engine()
    info = engine.model_info
    return {
        "id": state.model_id,
        "object": "model",
        # The start of the server: a time that stays the same lets clients compare answers.
        "created": state.started_at,
        "owned_by": "ninfer",
        "max_model_len": engine.max_context,
        "meta": {
            "n_vocab": info.public_tokens,
            "n_ctx": engine.max_context,
            "n_ctx_train": info.max_position_embeddings,
            "n_embd": info.hidden_size,
            "n_params": info.num_parameters,
            "size": info.payload_bytes,
            "ftype": "+".join(info.formats),
        },
    }
