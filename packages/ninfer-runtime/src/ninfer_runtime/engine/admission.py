"""What is checked and decided when a request is submitted, before anything is executed."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.engine.request import FinishReason, PreparedPrompt
from ninfer_runtime.errors import RequestError, RequestErrorKind


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """How far a request may generate.

    Attributes:
        tokens: Most tokens that it may generate.
        reason: Why it ends there.
    """

    tokens: int
    reason: FinishReason


def output_limit(requested: int, prompt_tokens: int, max_context: int) -> OutputLimit:
    """Fit a requested number of output tokens into the context.

    The last token of a sequence is chosen but never executed, so that a prompt of P tokens leaves
    room for ``max_context - P + 1``. A prompt that fills the context leaves none: nothing of the
    answer could be continued.

    Args:
        requested: Tokens asked for, at least 0.
        prompt_tokens: Length of the prompt, at most `max_context`.
        max_context: Longest sequence in tokens.
    """
    room = max_context - prompt_tokens
    available = room + 1 if room > 0 else 0
    if requested <= available:
        return OutputLimit(requested, FinishReason.OUTPUT_LIMIT)
    return OutputLimit(available, FinishReason.CONTEXT_CAPACITY)


def check_prompt(prompt: PreparedPrompt, public_tokens: int, max_context: int) -> None:
    """Refuse a prompt that the engine cannot execute.

    Args:
        prompt: The prompt.
        public_tokens: Token ids below this are in the vocabulary.
        max_context: Longest sequence in tokens.

    Raises:
        RequestError: ``invalid_prompt``: it is empty or has a token outside the vocabulary.
            ``context_length_exceeded``: it is longer than the context.
    """
    length = len(prompt.token_ids)
    if length == 0:
        raise RequestError(RequestErrorKind.INVALID_PROMPT, "the prompt has no tokens")
    if length > max_context:
        raise RequestError(
            RequestErrorKind.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {length} tokens, the context holds {max_context}",
            prompt_tokens=length,
            max_context=max_context,
            hint="shorten the prompt or raise max_context",
        )
    for position, token_id in enumerate(prompt.token_ids):
        if not 0 <= token_id < public_tokens:
            raise RequestError(
                RequestErrorKind.INVALID_PROMPT,
                f"token {token_id} at position {position} is outside 0..{public_tokens - 1}",
            )


def check_output_tokens(requested: int) -> None:
    """Refuse a negative number of output tokens.

    Raises:
        RequestError: ``invalid_prompt``.
    """
    if requested < 0:
        raise RequestError(
            RequestErrorKind.INVALID_PROMPT, f"max_output_tokens {requested} must be at least 0"
        )
