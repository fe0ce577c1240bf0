"""Perplexity of a long stream of tokens, in windows that overlap.

Every token but the first is scored exactly once. Each window starts from an empty state, so that
the result depends on nothing but the tokens, the context and the stride.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ninfer_format.errors import UsageError
from ninfer_runtime.errors import RequestError, RequestErrorKind

if TYPE_CHECKING:
    import numpy as np


class Scorer(Protocol):
    """What scoring needs of a program."""

    def score(self, token_ids: Sequence[int], first_target: int, public_tokens: int) -> np.ndarray:
        """Log-probabilities of tokens from `first_target` on; see `Program.score`."""
        ...


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens ``begin..end-1`` of the stream, of which ``first_target..end-1`` are scored."""

    begin: int
    end: int
    first_target: int

    @property
    def num_targets(self) -> int:
        """Number of scored tokens."""
        return self.end - self.first_target


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Result of one window; `mean_nll` is the mean over its scored tokens, in nats."""

    window: Window
    mean_nll: float


@dataclass(frozen=True, slots=True)
class PerplexityReport:
    """Result of a stream.

    Attributes:
        tokens: Length of the stream, N.
        context: Longest window in tokens.
        stride: Targets by which windows advance.
        windows: Results of the windows in order.
        mean_nll: Mean negative log-likelihood of the scored tokens, in nats.
        scoring_s: Seconds that scoring took.
    """

    tokens: int
    context: int
    stride: int
    windows: tuple[WindowScore, ...]
    mean_nll: float
    scoring_s: float

    @property
    def scored_tokens(self) -> int:
        """Number of scored tokens."""
        return sum(score.window.num_targets for score in self.windows)

    @property
    def perplexity(self) -> float:
        """The exponential of `mean_nll`; infinite where that is beyond binary64."""
        try:
            return math.exp(self.mean_nll)
        except OverflowError:
            return math.inf

    @property
    def bits_per_token(self) -> float:
        """`mean_nll` in bits."""
        return self.mean_nll / math.log(2)

    @property
    def tok_s(self) -> float:
        """Scored tokens per second."""
        return self.scored_tokens / self.scoring_s if self.scoring_s > 0 else 0.0


def check_window_sizes(context: int, stride: int) -> None:
    """Refuse sizes that give no windows.

    Raises:
        UsageError: `context` is below 2, or `stride` is not in ``1..context-1``.
    """
    if context < 2:
        raise UsageError(f"context {context} must be at least 2")
    if not 1 <= stride < context:
        raise UsageError(f"stride {stride} must be in 1..{context - 1}, below the context")


def check_stream(token_ids: Sequence[int]) -> None:
    """Refuse a stream in which nothing can be scored.

    Raises:
        UsageError: It has fewer than two tokens.
    """
    if len(token_ids) < 2:
        raise UsageError(
            f"the text has {len(token_ids)} tokens, at least 2 are needed to score one"
        )


def windows(num_tokens: int, context: int, stride: int) -> Iterator[Window]:
    """Cut a stream into windows.

    The first window scores all its tokens but the first. Each further one advances by `stride`
    and scores what no window before it did, so that each of its targets has at least
    ``context - stride`` tokens before it; the last window may be shorter.

    Args:
        num_tokens: Length of the stream, N.
        context: Longest window in tokens.
        stride: Targets by which windows advance.

    Raises:
        UsageError: The sizes give no windows.
    """
    check_window_sizes(context, stride)
    begin, first_target = 0, 1
    while first_target < num_tokens:
        end = min(begin + context, num_tokens)
        yield Window(begin, end, first_target)
        begin, first_target = begin + stride, end


def score_stream(
    program: Scorer,
    token_ids: Sequence[int],
    *,
    context: int,
    stride: int,
    public_tokens: int,
    advance: Callable[[int], None] | None = None,
) -> PerplexityReport:
    """Score every token of a stream but the first.

    Args:
        program: Executes the windows.
        token_ids: The stream, N tokens.
        context: Longest window in tokens.
        stride: Targets by which windows advance.
        public_tokens: The softmax runs over the ids below this.
        advance: Called after each window with the number of its targets.

    Raises:
        UsageError: The stream has fewer than two tokens, or the sizes give no windows.
        RequestError: ``non_finite_logits``: a score is not finite; the message names the window
            and the position in the stream.
    """
    check_stream(token_ids)
    started = time.monotonic()
    scores: list[WindowScore] = []
    total_nll = 0.0
    for index, window in enumerate(windows(len(token_ids), context, stride)):
        nll = _window_nll(program, token_ids, index, window, public_tokens)
        total_nll += nll
        scores.append(WindowScore(window, nll / window.num_targets))
        if advance is not None:
            advance(window.num_targets)
    return PerplexityReport(
        tokens=len(token_ids),
        context=context,
        stride=stride,
        windows=tuple(scores),
        mean_nll=total_nll / (len(token_ids) - 1),
        scoring_s=time.monotonic() - started,
    )


def _window_nll(
    program: Scorer, token_ids: Sequence[int], index: int, window: Window, public_tokens: int
) -> float:
    """Sum of the negative log-likelihoods of one window's targets, in nats."""
    log_probabilities = program.score(
        token_ids[window.begin : window.end], window.first_target - window.begin, public_tokens
    )
    _check_finite(log_probabilities, index, window)
    return -float(log_probabilities.sum(dtype="float64"))


def _check_finite(log_probabilities: np.ndarray, index: int, window: Window) -> None:
    for offset, value in enumerate(log_probabilities.tolist()):
        if not math.isfinite(value):
            position = window.first_target + offset
            raise RequestError(
                RequestErrorKind.NON_FINITE_LOGITS,
                f"window {index}, position {position} of the text: "
                f"the log-probability is {value}, expected a finite number",
            )
