"""The route of chat completions."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ninfer_server.background import on_daemon_thread
from ninfer_server.body import parse_json_object, read_body
from ninfer_server.engine_bridge import Generation
from ninfer_server.logs import get_logger
from ninfer_server.openai_chat.respond import completion_body
from ninfer_server.openai_chat.schema import ChatCompletionRequest
from ninfer_server.openai_chat.stream import ChatStream, error_event
from ninfer_server.openai_chat.translate import ChatCall, translate
from ninfer_server.openapi import ERRORS, json_request
from ninfer_server.request_context import request_id_of
from ninfer_server.settings import ServerSettings
from ninfer_server.state import ServerState, server_state
from ninfer_server.streaming import GenerationResponse, event_stream, hold_status_line

router = APIRouter()

_SHORT_BODY_BYTES = 1 << 16
"""Bodies up to this length are understood at once; longer ones would hold up other requests."""


@router.post(
    "/v1/chat/completions", responses=ERRORS, openapi_extra=json_request(ChatCompletionRequest)
)
async def create_chat_completion(request: Request) -> Response:
    """Continue a chat, answering at once or as a stream of events."""
    state = server_state(request)
    request_id = request_id_of(request.scope)
    call = await _read_call(request, state)
    if call.headers:
        get_logger().debug("fields without effect", id=request_id, **call.headers)

    async def begin(generation: Generation) -> Response:
        return await _answer(call, generation, request_id, state.settings)

    return GenerationResponse(state, request_id, begin)


async def _read_call(request: Request, state: ServerState) -> ChatCall:
    model_id = state.model_id
    body = await state.unless_stopping(
        asyncio.ensure_future(read_body(request, state.settings.max_request_bytes))
    )
    understand = partial(_understand, body, model_id, state.settings)
    if len(body) <= _SHORT_BODY_BYTES:
        return understand()
    return await state.unless_stopping(
        asyncio.wrap_future(on_daemon_thread(understand, "ninfer-parse"))
    )


def _understand(body: bytearray, model_id: str, settings: ServerSettings) -> ChatCall:
    return translate(parse_json_object(body), model_id, settings)


async def _answer(
    call: ChatCall, generation: Generation, request_id: str, settings: ServerSettings
) -> Response:
    await generation.submit(call.prompt, call.options, stream=call.stream)
    if not call.stream:
        result = await generation.result()
        return JSONResponse(completion_body(call.model, result), headers=call.headers)
    await hold_status_line(generation.wait_until_admitted(), settings.header_hold_s)
    return event_stream(
        ChatStream(call, generation).events(),
        request_id=request_id,
        error_event=error_event,
        keep_alive_s=settings.keep_alive_s,
        headers=call.headers,
    )
