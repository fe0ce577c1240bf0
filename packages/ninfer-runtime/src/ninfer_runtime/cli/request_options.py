"""From the options of ``ninfer`` to a prompt and the way it is continued."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ninfer_format.errors import UsageError
from ninfer_runtime.cli.messages import parse_messages
from ninfer_runtime.cli.sampling_options import (
    GREEDY_CONFLICT,
    is_greedy_conflict,
    sampling_overrides,
)
from ninfer_runtime.engine.request import Message, PromptInput, RequestOptions, Tool

STDIN = "-"


def prompt_input(options: Mapping[str, Any]) -> PromptInput:
    """Make the prompt that the options describe.

    Raises:
        UsageError: Neither or both of ``--prompt`` and ``--messages``, an empty prompt, a bad
            messages file, or thinking both off and wanted.
    """
    prompt, messages = options["prompt"], options["messages"]
    if (prompt is None) == (messages is None):
        raise UsageError("exactly one of --prompt and --messages is needed")
    effort = options["reasoning_effort"]
    if options["no_thinking"] and effort not in (None, "none"):
        raise UsageError(f"--no-thinking contradicts --reasoning-effort {effort}")
    chat: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    if messages is None:
        chat = (Message("user", _prompt_text(prompt)),)
    else:
        chat, tools = parse_messages(*_read(messages))
    return PromptInput(
        messages=chat,
        tools=tools,
        enable_thinking=False if options["no_thinking"] else None,
        reasoning_effort=effort,
    )


def request_options(options: Mapping[str, Any]) -> RequestOptions:
    """Make the options of the request.

    Raises:
        UsageError: ``--greedy`` with a temperature, or an empty stop string.
    """
    if is_greedy_conflict(options):
        raise UsageError(GREEDY_CONFLICT)
    for name in ("stop", "reasoning_stop"):
        if "" in options[name]:
            raise UsageError(f"--{name.replace('_', '-')} needs a non-empty text")
    return RequestOptions(
        max_output_tokens=options["max_new"],
        sampling=sampling_overrides(options),
        stop_strings=options["stop"],
        reasoning_stop_strings=options["reasoning_stop"],
        stop_token_ids=options["stop_token_id"],
        raw_output=options["raw_output"],
        seed=options["seed"],
    )


def _prompt_text(prompt: str) -> str:
    if prompt == STDIN:
        data, source = _read(STDIN)
        try:
            prompt = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"not UTF-8: {error.reason} at byte {error.start}", path=source
            ) from None
    if not prompt:
        raise UsageError("--prompt is empty")
    return prompt


def _read(path: str) -> tuple[bytes, str]:
    if path == STDIN:
        if sys.stdin is None:
            raise UsageError("stdin is closed", hint="give the text or the name of a file")
        return sys.stdin.buffer.read(), "stdin"
    try:
        return Path(os.path.expanduser(path)).read_bytes(), path
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot be read: {reason}", path=path) from None
