"""How the tokens of a request are drawn."""

from __future__ import annotations

import secrets
from typing import TypeVar

from ninfer_runtime.sampling.params import MAX_CANDIDATES, SamplingOverrides
from ninfer_server.compatibility import Compatibility
from ninfer_server.errors import invalid_request
from ninfer_server.openai_chat.schema import ChatCompletionRequest
from ninfer_server.settings import ServerSettings

T = TypeVar("T")

_SEED_MASK = (1 << 64) - 1


def sampling_overrides(
    chat: ChatCompletionRequest, settings: ServerSettings, compatibility: Compatibility
) -> SamplingOverrides:
    """Return the values of the request, then those of the server; the rest is the model's.

    Raises:
        ApiError: 400: ``top_k`` is above what the sampler can do, in strict mode.
    """
    defaults = settings.sampling
    return SamplingOverrides(
        temperature=_first(chat.temperature, defaults.temperature),
        top_p=_first(chat.top_p, defaults.top_p),
        top_k=_first(_top_k(chat.top_k, compatibility), defaults.top_k),
        min_p=_first(chat.min_p, defaults.min_p),
        presence_penalty=_first(chat.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_first(chat.frequency_penalty, defaults.frequency_penalty),
        greedy=defaults.greedy,
    )


def sampling_seed(chat: ChatCompletionRequest, settings: ServerSettings) -> int:
    """Return the seed as u64: the request's (negative ones as two's complement), else another."""
    if chat.seed is not None:
        return chat.seed & _SEED_MASK
    return secrets.randbits(64) if settings.seed is None else settings.seed


def _first(value: T | None, default: T | None) -> T | None:
    return default if value is None else value


def _top_k(top_k: int | None, compatibility: Compatibility) -> int | None:
    if top_k == -1:
        return 0
    if top_k is not None and top_k > MAX_CANDIDATES:
        too_large = invalid_request(
            f"top_k {top_k} is above {MAX_CANDIDATES}, the most candidates that are drawn from",
            param="top_k",
        )
        compatibility.ignore("top_k", otherwise=too_large)
        return MAX_CANDIDATES
    return top_k
