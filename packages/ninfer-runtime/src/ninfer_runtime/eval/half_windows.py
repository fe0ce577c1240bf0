"""Scoring the second halves of windows that do not overlap, with all probabilities.

A model's whole predictions are compared there, not only what it gives to the tokens of the text:
every position has at least half a window of context before it, and every token is executed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from ninfer_format.errors import UsageError
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.eval.perplexity import PerplexityReport, Window, WindowScore

if TYPE_CHECKING:
    import numpy as np

SMALLEST_CONTEXT = 4
_BLOCK_ELEMENTS = 1 << 20
"""Probabilities that exist at a time beside the logits: 8 MB in binary64."""

Consumer = Callable[["np.ndarray", "np.ndarray"], None]
"""Is given log-probabilities, float64 ``[n, V]``, of consecutive positions, and the tokens of the
text there, int ``[n]``."""


class LogitScorer(Protocol):
    """What this kind of scoring needs of a program."""

    def target_logits(
        self, token_ids: Sequence[int], first_target: int, public_tokens: int
    ) -> Generator[np.ndarray, None, None]:
        """Logits for tokens from `first_target` on; see `Program.target_logits`."""
        ...


def half_windows(num_tokens: int, context: int, most: int | None = None) -> tuple[Window, ...]:
    """Cut a stream into whole windows of which the second half is scored.

    Args:
        num_tokens: Length of the stream.
        context: Tokens of a window.
        most: Most windows; None for all.

    Raises:
        UsageError: The context is below 4, or the stream has no whole window.
    """
    if context < SMALLEST_CONTEXT:
        raise UsageError(f"context {context} must be at least {SMALLEST_CONTEXT} for logits")
    count = num_tokens // context
    if count == 0:
        raise UsageError(
            f"the text has {num_tokens} tokens, at least {context} are needed for one window",
            hint="give a smaller --context",
        )
    count = count if most is None else min(count, most)
    return tuple(
        Window(begin, begin + context, begin + context // 2)
        for begin in range(0, count * context, context)
    )


def score_half_windows(
    program: LogitScorer,
    token_ids: Sequence[int],
    windows: Sequence[Window],
    *,
    public_tokens: int,
    consumer: Consumer,
    advance: Callable[[int], None] | None = None,
) -> PerplexityReport:
    """Score the targets of windows, and hand out all probabilities.

    Args:
        program: Executes the windows.
        token_ids: The stream.
        windows: What `half_windows` gave, at least one.
        public_tokens: The softmax runs over the ids below this, V.
        consumer: Gets the probabilities of all targets in order, some rows at a time.
        advance: Called after each window with the number of its targets.

    Raises:
        RequestError: ``non_finite_logits``: a logit is not finite; the message names the window
            and the position in the stream.
    """
    started = time.monotonic()
    scores: list[WindowScore] = []
    for index, window in enumerate(windows):
        nll = _window_nll(program, token_ids, index, window, public_tokens, consumer)
        scores.append(WindowScore(window, nll / window.num_targets))
        if advance is not None:
            advance(window.num_targets)
    total = sum(score.mean_nll * score.window.num_targets for score in scores)
    context = windows[0].end - windows[0].begin
    return PerplexityReport(
        tokens=len(token_ids),
        context=context,
        stride=context // 2,
        windows=tuple(scores),
        mean_nll=total / sum(window.num_targets for window in windows),
        scoring_s=time.monotonic() - started,
    )


def _window_nll(
    program: LogitScorer,
    token_ids: Sequence[int],
    index: int,
    window: Window,
    public_tokens: int,
    consumer: Consumer,
) -> float:
    """Sum of the negative log-likelihoods of one window's targets, in nats."""
    import numpy as np

    from ninfer_runtime.eval.divergence import log_softmax

    stream = token_ids[window.begin : window.end]
    tokens = np.asarray(stream, np.int64)
    first = window.first_target - window.begin
    total, position = 0.0, first
    rows = max(1, _BLOCK_ELEMENTS // public_tokens)
    with closing(program.target_logits(stream, first, public_tokens)) as blocks:
        for logits in blocks:
            _check_finite(logits, index, window.begin + position)
            for begin in range(0, len(logits), rows):
                log_probabilities = log_softmax(logits[begin : begin + rows])
                targets = tokens[position : position + len(log_probabilities)]
                total -= float(log_probabilities[np.arange(len(targets)), targets].sum())
                consumer(log_probabilities, targets)
                position += len(targets)
    return total


def _check_finite(logits: np.ndarray, index: int, position: int) -> None:
    import numpy as np

    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        raise RequestError(
            RequestErrorKind.NON_FINITE_LOGITS,
            f"window {index}, position {position + int(finite.argmin())} of the text: "
            "a logit is not a finite number",
        )
