"""What an engine says about itself while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum, auto


class Availability(StrEnum):
    """Whether an engine takes requests; values are the names in lower case."""

    READY = auto()
    FAILED = auto()
    STOPPING = auto()


@dataclass(frozen=True, slots=True)
class RuntimeStats:
    """Counters since the start, and gauges of now.

    Attributes:
        computed_prefill_tokens: Prompt tokens executed.
        committed_decode_tokens: Tokens generated, without the first of each request.
        decode_rounds: Decode steps executed.
        finished_requests: Requests that ended with a result.
        failed_requests: Requests that ended with an error after they had started.
        nonfinite_requests: Those of them that failed because logits were not finite.
        oom_recovered: Those of them that failed because memory ran out.
        running: Requests being executed: 0 or 1.
        waiting: Requests in the queue.
        heartbeat_age_s: Seconds since the worker last finished a chunk or a step while it holds
            work; 0 when it has none. A large value means that it is stuck.
    """

    computed_prefill_tokens: int
    committed_decode_tokens: int
    decode_rounds: int
    finished_requests: int
    failed_requests: int
    nonfinite_requests: int
    oom_recovered: int
    running: int
    waiting: int
    heartbeat_age_s: float


class Counters:
    """The worker's own counters: it alone writes them, anybody may read."""

    def __init__(self) -> None:
        self.computed_prefill_tokens = 0
        self.committed_decode_tokens = 0
        self.decode_rounds = 0
        self.finished_requests = 0
        self.failed_requests = 0
        self.nonfinite_requests = 0
        self.oom_recovered = 0
        self._busy_since: float | None = None

    def beat(self) -> None:
        """Note that the worker, which holds work, has reached a boundary."""
        self._busy_since = time.monotonic()

    def rest(self) -> None:
        """Note that the worker holds no work."""
        self._busy_since = None

    def snapshot(self, waiting: int) -> RuntimeStats:
        """Return the present values together with the length of the queue."""
        beat = self._busy_since
        return RuntimeStats(
            computed_prefill_tokens=self.computed_prefill_tokens,
            committed_decode_tokens=self.committed_decode_tokens,
            decode_rounds=self.decode_rounds,
            finished_requests=self.finished_requests,
            failed_requests=self.failed_requests,
            nonfinite_requests=self.nonfinite_requests,
            oom_recovered=self.oom_recovered,
            running=0 if beat is None else 1,
            waiting=waiting,
            heartbeat_age_s=0.0 if beat is None else time.monotonic() - beat,
        )
