"""What the HTTP side of a server was started with. Everything the engine needs is elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ninfer_runtime.sampling.params import SamplingOverrides

CompatibilityMode = Literal["lenient", "strict"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server; immutable while it runs.

    Attributes:
        model_id: Public name of the model; None takes the artifact's name, then its architecture.
        accept_any_model: Requests may carry any model name; it is echoed.
        api_key_digests: SHA-256 of each accepted key; empty means that no key is asked for.
        cors: Answer cross-origin requests from web pages.
        compatibility: ``strict`` refuses what has no effect, ``lenient`` reports it in a header.
        max_pending_requests: Requests that may wait beside the running one.
        pending_timeout_s: Longest time from the arrival of a request until it runs, in seconds.
        default_max_tokens: Output limit of requests that give none, in tokens.
        max_request_bytes: Longest request body.
        sampling: Values that replace the model's preset where a request gives none.
        seed: Seed of requests that give none; None draws one for each.
        enable_thinking: Default of requests that do not say; None leaves it to the template.
        preserve_thinking: Default of requests that do not say; None leaves it to the template.
        shutdown_grace_s: How long running requests may go on after a signal, in seconds.
        header_hold_s: How long a stream waits for admission before it sends its status line.
        keep_alive_s: Silence in a stream after which a comment is sent, in seconds.
        stall_s: Silence of a busy engine after which the server calls itself unhealthy.
    """

    model_id: str | None = None
    accept_any_model: bool = False
    api_key_digests: tuple[bytes, ...] = field(default=(), repr=False)
    cors: bool = False
    compatibility: CompatibilityMode = "lenient"
    max_pending_requests: int = 16
    pending_timeout_s: float = 30.0
    default_max_tokens: int = 8192
    max_request_bytes: int = 384 * MIB
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    seed: int | None = None
    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None
    shutdown_grace_s: float = 10.0
    header_hold_s: float = 5.0
    keep_alive_s: float = 5.0
    stall_s: float = 30.0


def digest_api_keys(keys: Iterable[str]) -> tuple[bytes, ...]:
    """Return what `ServerSettings.api_key_digests` holds; the keys themselves are not kept."""
    return tuple(digest_api_key(key.encode()) for key in keys)


def digest_api_key(key: bytes) -> bytes:
    """Return the SHA-256 of a key: equal lengths make the comparison's time constant."""
    return hashlib.sha256(key).digest()
