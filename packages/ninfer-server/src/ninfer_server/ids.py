"""The identifiers that the server hands out."""

from __future__ import annotations

import secrets


def new_request_id() -> str:
    """Return an id for the ``x-request-id`` header."""
    return f"req_{secrets.token_hex(16)}"


def new_chat_completion_id() -> str:
    """Return an id for a chat completion; all chunks of a stream share it."""
    return f"chatcmpl-{secrets.token_hex(8)}"


def new_tool_call_id() -> str:
    """Return an id for a tool call; a client sends it back with the tool's answer."""
    return f"call_{secrets.token_hex(8)}"
