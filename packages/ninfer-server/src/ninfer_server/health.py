"""``GET /health``: whether a request that comes now could be served."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from ninfer_server.state import server_state

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """Say whether the server can serve: not while it loads or stops, nor when the engine stalls."""
    if server_state(request).is_available():
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable"}, status_code=503)
