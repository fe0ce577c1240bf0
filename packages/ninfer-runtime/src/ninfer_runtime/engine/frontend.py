"""What the engine needs from the text side: prompts in, output text out.

`ninfer_runtime.text.frontend.Frontend` satisfies `Frontend`; tests drive the engine with a scripted
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ninfer_runtime.engine.request import (
        FinishReason,
        OutputDelta,
        PreparedPrompt,
        PromptInput,
        RequestOptions,
        ToolCall,
    )
    from ninfer_runtime.sampling.params import SamplingParams


class OutputSession(Protocol):
    """Turns the tokens of one request into channels, text, calls and a decision to stop."""

    @property
    def content(self) -> str:
        """The content channel so far."""
        ...

    @property
    def reasoning(self) -> str:
        """The reasoning channel so far."""
        ...

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Calls recognised; complete after `close`."""
        ...

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens accepted."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """How many of them belong to the reasoning channel."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the output ended. After `close` it may be a stop string found in held-back text."""
        ...

    @property
    def matched_stop_string(self) -> str | None:
        """The stop string that ended the output, if one did."""
        ...

    def accept(self, token_id: int) -> tuple[tuple[OutputDelta, ...], FinishReason | None]:
        """Take one token; returns the text that it completes and whether it ends the output."""
        ...

    def close(self, reason: FinishReason) -> tuple[OutputDelta, ...]:
        """End the output and return the text that was held back."""
        ...


class TokenDomain(Protocol):
    """Which token ids there are."""

    @property
    def public_tokens(self) -> int:
        """Ids below this may appear in prompts and outputs; a model may have padding beyond."""
        ...


class Frontend(Protocol):
    """The text side of one model; its methods may be called from any thread."""

    @property
    def tokenizer(self) -> TokenDomain:
        """Knows the token ids."""
        ...

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        """Render and tokenize a prompt."""
        ...

    def sampling_preset(self, thinking: bool) -> SamplingParams:
        """The model's own sampling values for an output that starts with or without thinking."""
        ...

    def open_output(self, prompt: PreparedPrompt, options: RequestOptions) -> OutputSession:
        """Start the output of one request."""
        ...
