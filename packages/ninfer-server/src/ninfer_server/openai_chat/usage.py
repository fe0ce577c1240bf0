"""Token counts and times of a chat completion, as clients read them."""

from __future__ import annotations

from typing import Any

from ninfer_runtime.engine.request import GenerationResult


def usage_of(result: GenerationResult) -> dict[str, Any]:
    """Return the ``usage`` object of a finished completion."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": result.reused_prompt_tokens},
        "completion_tokens": result.completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": result.reasoning_tokens},
        "total_tokens": result.prompt_tokens + result.completion_tokens,
    }


def timings_of(result: GenerationResult) -> dict[str, Any]:
    """Return the ``timings`` object of a finished completion."""
    return timings(
        cached_tokens=result.reused_prompt_tokens,
        computed_tokens=result.prompt_tokens - result.reused_prompt_tokens,
        prompt_s=result.timings.prefill_s,
        predicted_tokens=result.completion_tokens,
        predicted_s=result.timings.decode_s,
    )


def timings(
    *,
    cached_tokens: int,
    computed_tokens: int,
    prompt_s: float,
    predicted_tokens: int,
    predicted_s: float,
) -> dict[str, Any]:
    """Return a ``timings`` object, whose names llama.cpp's clients know.

    Args:
        cached_tokens: Prompt tokens that did not have to be executed.
        computed_tokens: Prompt tokens that were.
        prompt_s: From the start of the request until its first output token, in seconds.
        predicted_tokens: Output tokens.
        predicted_s: From the first output token until the last, in seconds; the first one costs
            no such time, so that rates count one token less.
    """
    intervals = max(predicted_tokens - 1, 0)
    return {
        "cache_n": cached_tokens,
        "prompt_n": computed_tokens,
        "prompt_ms": prompt_s * 1000,
        "prompt_per_token_ms": _ratio(prompt_s * 1000, computed_tokens),
        "prompt_per_second": _ratio(computed_tokens, prompt_s),
        "predicted_n": predicted_tokens,
        "predicted_ms": predicted_s * 1000,
        "predicted_per_token_ms": _ratio(predicted_s * 1000, intervals),
        "predicted_per_second": _ratio(intervals, predicted_s),
    }


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
