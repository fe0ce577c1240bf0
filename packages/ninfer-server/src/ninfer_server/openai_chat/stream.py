"""The events of a chat completion that is streamed.

The order is fixed: the role, the progress of the prompt if asked for, reasoning, content, one
event for each tool call, the finish reason, the usage if asked for, and ``[DONE]``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from ninfer_runtime.engine.request import (
    GenerationResult,
    GenerationStart,
    OutputDelta,
    PromptProgress,
)
from ninfer_server.engine_bridge import Generation, Published
from ninfer_server.errors import ApiError
from ninfer_server.ids import new_chat_completion_id
from ninfer_server.openai_chat.respond import finish_reason, tool_call_body
from ninfer_server.openai_chat.translate import ChatCall
from ninfer_server.openai_chat.usage import timings, timings_of, usage_of
from ninfer_server.streaming import encode_event

DONE = b"data: [DONE]\n\n"

_FIELDS = {"reasoning": "reasoning_content", "content": "content"}


def error_event(error: ApiError) -> bytes:
    """Return the event that ends a stream which failed; ``[DONE]`` does not follow."""
    return encode_event(error.body())


class ChatStream:
    """Writes one completion as events.

    Args:
        call: What was asked for.
        generation: What the engine publishes; it must have been submitted as a stream.
    """

    def __init__(self, call: ChatCall, generation: Generation) -> None:
        self._call = call
        self._generation = generation
        self._id = new_chat_completion_id()
        self._created = int(time.time())
        self._sent = {"reasoning": "", "content": ""}
        self._clock = _Clock()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield encoded events.

        Raises:
            RequestError: The request failed.
            ApiError: 503: it waited too long, or the server stops.
        """
        async with aclosing(self._generation.events()) as published_events:
            async for published in published_events:
                for event in self._events_of(published):
                    yield event
        result = await self._generation.result()
        for event in self._last_events(result):
            yield event
        yield DONE

    def _events_of(self, published: Published) -> Iterator[bytes]:
        event = published.event
        self._clock.observe(published)
        if isinstance(event, GenerationStart):
            yield self._chunk({"role": "assistant", "content": ""})
            yield from self._progress()
        elif isinstance(event, PromptProgress):
            yield from self._progress()
        else:
            yield self._text(event)

    def _progress(self) -> Iterator[bytes]:
        progress = self._clock.unreported_progress() if self._call.return_progress else None
        if progress is not None:
            yield self._chunk({}, prompt_progress=progress, **self._live_timings())

    def _text(self, delta: OutputDelta) -> bytes:
        self._sent[delta.channel] += delta.text
        return self._chunk({_FIELDS[delta.channel]: delta.text}, **self._live_timings())

    def _live_timings(self) -> dict[str, Any]:
        return {"timings": self._clock.timings()} if self._call.timings_per_token else {}

    def _last_events(self, result: GenerationResult) -> Iterator[bytes]:
        for channel, text in (("reasoning", result.reasoning), ("content", result.text)):
            rest = _rest(channel, self._sent[channel], text)
            if rest:
                yield self._chunk({_FIELDS[channel]: rest})
        for index, call in enumerate(result.tool_calls):
            yield self._chunk({"tool_calls": [{"index": index, **tool_call_body(call)}]})
        observations = {"timings": timings_of(result)}
        if not self._call.include_usage:
            yield self._chunk({}, finish_reason(result), **observations)
            return
        yield self._chunk({}, finish_reason(result))
        yield encode_event(
            {**self._envelope(), "choices": [], "usage": usage_of(result), **observations}
        )

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._call.include_usage else {}
        return encode_event({**self._envelope(), "choices": [choice], **usage, **more})

    def _envelope(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._call.model,
        }


def _rest(channel: str, sent: str, text: str) -> str:
    if not text.startswith(sent):
        raise RuntimeError(f"the streamed {channel} is no prefix of the whole")
    return text[len(sent) :]


class _Clock:
    """What is known of the times and the progress of a request while it runs."""

    def __init__(self) -> None:
        self._total = 0
        self._cached = 0
        self._processed = 0
        self._reported = -1
        self._predicted = 0
        self._started_at = 0.0
        self._first_output_at: float | None = None
        self._now = 0.0

    def observe(self, published: Published) -> None:
        """Take one event into account."""
        event, self._now = published.event, published.at
        if isinstance(event, GenerationStart):
            self._total = event.prompt_tokens
            self._cached = self._processed = event.reused_prompt_tokens
            self._started_at = published.at
        elif isinstance(event, PromptProgress):
            self._processed = max(self._processed, event.processed)
        else:
            self._predicted = event.completion_tokens
            self._first_output_at = self._first_output_at or published.at

    def unreported_progress(self) -> dict[str, Any] | None:
        """Return the progress of the prompt if it has changed since the last call."""
        if self._processed == self._reported:
            return None
        self._reported = self._processed
        return {
            "total": self._total,
            "cache": self._cached,
            "processed": self._processed,
            "time_ms": (self._now - self._started_at) * 1000,
        }

    def timings(self) -> dict[str, Any]:
        """Return the ``timings`` object as of the last event."""
        first = self._now if self._first_output_at is None else self._first_output_at
        return timings(
            cached_tokens=self._cached,
            computed_tokens=self._processed - self._cached,
            prompt_s=first - self._started_at,
            predicted_tokens=self._predicted,
            predicted_s=self._now - first,
        )
