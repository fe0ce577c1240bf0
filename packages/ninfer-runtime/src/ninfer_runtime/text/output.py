"""The output of one request: from generated token ids to channels, calls and the end."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable, Iterator

from ninfer_runtime.engine.request import (
    Channel,
    FinishReason,
    OutputDelta,
    PreparedPrompt,
    RequestOptions,
    ToolCall,
)
from ninfer_runtime.text.detokenizer import Detokenizer
from ninfer_runtime.text.parsers.reasoning import Piece, ReasoningParser
from ninfer_runtime.text.parsers.tool_calls import ToolCallParser
from ninfer_runtime.text.parsers.tool_regions import ParsedCall
from ninfer_runtime.text.stop import StopMatcher
from ninfer_runtime.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
# Without a handler of the application's, warnings stay out of a command's stderr.
_log.addHandler(logging.NullHandler())


class OutputSession:
    """Takes the tokens of one request and says what a caller sees of them.

    Bytes become characters, characters go to a channel, each channel ends at its stop strings, and
    calls at the end of the content are set apart. The deltas of a channel add up to its text.

    Args:
        tokenizer: Knows the bytes of every token.
        prompt: Where the output starts, and the tools that can be called.
        options: Stop conditions and the form of the output.
        stop_token_ids: The model's own stop tokens.

    Attributes:
        token_ids: All tokens so far, a stop token included.
        reasoning_tokens: Those that belong to the reasoning channel.
        finish_reason: Why the output ended; None while it goes on. It may differ from the reason
            given to `close` if the last characters were a stop string or the only call.
        matched_stop_string: The stop string that ended it, if one did.
        tool_calls: Calls at the end of the content; empty while the output goes on.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: PreparedPrompt,
        options: RequestOptions,
        stop_token_ids: Collection[int],
    ) -> None:
        self.token_ids: list[int] = []
        self.reasoning_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.matched_stop_string: str | None = None
        self.tool_calls: tuple[ToolCall, ...] = ()
        raw = options.raw_output
        model_stops = () if options.ignore_eos else stop_token_ids
        self._stop_token_ids = frozenset(options.stop_token_ids).union(model_stops)
        self._raw = raw
        self._detokenizer = Detokenizer(tokenizer, show_special=raw)
        self._reasoning_parser = ReasoningParser(
            starts_in_reasoning=prompt.starts_in_reasoning and not raw
        )
        self._stops: dict[Channel, StopMatcher] = {
            "reasoning": StopMatcher(options.reasoning_stop_strings),
            "content": StopMatcher(options.stop_strings),
        }
        self._calls: ToolCallParser | None = None
        if prompt.tools and not raw:
            self._calls = ToolCallParser(prompt.tools, only_one=not options.parallel_tool_calls)
        self._channel: Channel = self._parser_channel()
        self._undecided_tokens = 0
        self._text: dict[Channel, list[str]] = {"reasoning": [], "content": []}

    @property
    def content(self) -> str:
        """The content channel so far, without calls."""
        return "".join(self._text["content"])

    @property
    def reasoning(self) -> str:
        """The reasoning channel so far."""
        return "".join(self._text["reasoning"])

    def accept(self, token_id: int) -> tuple[tuple[OutputDelta, ...], FinishReason | None]:
        """Take the next token.

        Returns:
            What can be shown now, and why the output ends, if it does. Tokens after the end are
            ignored.
        """
        if self.finish_reason is not None:
            return (), self.finish_reason
        self.token_ids.append(token_id)
        is_stop = token_id in self._stop_token_ids
        text = "" if is_stop and not self._raw else self._detokenizer.feed(token_id)
        before = self._reasoning_parser.state
        pieces = self._reasoning_parser.feed(text)
        self._count_reasoning(before, pieces)
        shown = self._through_stops(pieces)
        if is_stop:
            shown += self._end(FinishReason.STOP_TOKEN)
        return self._publish(shown), self.finish_reason

    def close(self, reason: FinishReason) -> tuple[OutputDelta, ...]:
        """End the output from outside; returns what was held back.

        Args:
            reason: Why, unless it ended before.
        """
        if self.finish_reason is not None:
            return ()
        return self._publish(self._end(reason))

    def _parser_channel(self) -> Channel:
        return "content" if self._reasoning_parser.state == "content" else "reasoning"

    def _count_reasoning(self, before: str, pieces: Iterable[Piece]) -> None:
        """Count a token as part of the thoughts once that is certain.

        Tokens behind a marker that may end the thoughts count only if the marker turns out to be
        a quotation, which shows in text that the parser releases.
        """
        if before == "open":
            self.reasoning_tokens += 1
        elif before == "deciding":
            self._undecided_tokens += 1
            if any(channel == "reasoning" for channel, _ in pieces):
                self.reasoning_tokens += self._undecided_tokens
                self._undecided_tokens = 0

    def _through_stops(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Match stop strings; text behind a match is dropped."""
        shown: list[Piece] = []
        for channel, text in pieces:
            shown += self._enter(channel)
            if self.finish_reason is None:
                released, matched = self._stops[channel].feed(text)
                shown.append((channel, released))
                self._stop_at(matched)
        return shown + self._enter(self._parser_channel())

    def _enter(self, channel: Channel) -> list[Piece]:
        """Change the channel; what the old one held back cannot become a match any more."""
        if channel == self._channel or self.finish_reason is not None:
            return []
        shown = self._flush_stops()
        self._channel = channel
        return shown

    def _flush_stops(self) -> list[Piece]:
        released, matched = self._stops[self._channel].flush()
        self._stop_at(matched)
        return [(self._channel, released)]

    def _stop_at(self, matched: str | None) -> None:
        if matched is not None:
            self.matched_stop_string = matched
            self.finish_reason = FinishReason.STOP_STRING

    def _end(self, reason: FinishReason) -> list[Piece]:
        """Flush every stage in order; a stop string found on the way is the reason."""
        if self.finish_reason is not None:
            return []
        pieces = self._reasoning_parser.feed(self._detokenizer.finish())
        shown = self._through_stops(pieces + self._reasoning_parser.flush())
        if self.finish_reason is None:
            shown += self._flush_stops()
        self.finish_reason = self.finish_reason or reason
        return shown

    def _publish(self, shown: Iterable[Piece]) -> tuple[OutputDelta, ...]:
        """Set calls apart and join neighbouring pieces of one channel."""
        deltas: list[OutputDelta] = []
        for channel, text in self._without_calls(shown):
            if not text:
                continue
            self._text[channel].append(text)
            if deltas and deltas[-1].channel == channel:
                text = deltas.pop().text + text
            deltas.append(OutputDelta(channel, text, len(self.token_ids)))
        return tuple(deltas)

    def _without_calls(self, shown: Iterable[Piece]) -> Iterator[Piece]:
        if self._calls is None:
            yield from shown
            return
        for channel, text in shown:
            yield channel, self._calls.feed(text) if channel == "content" else text
        if self._calls.is_full:
            # Whatever else has ended the output lies behind the call, in text that is dropped.
            self.finish_reason, self.matched_stop_string = FinishReason.TOOL_CALL, None
        if self.finish_reason is not None:
            rest, calls = self._calls.finish()
            self.tool_calls = tuple(map(_with_id, calls))
            if self._calls.refusal is not None:
                # The reason only: a log must not hold what the model wrote.
                _log.warning("a tool call stayed text: %s", self._calls.refusal)
            yield "content", rest


def _with_id(call: ParsedCall) -> ToolCall:
    return ToolCall(f"call_{secrets.token_hex(8)}", call.name, call.arguments)
