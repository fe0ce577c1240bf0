"""How far the predictions of one model are from those of another on the same text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class DivergenceReport:
    """Kullback-Leibler divergences KL(reference ‖ this), in nats, over all scored positions.

    Attributes:
        positions: Number of scored positions.
        mean_kl: Their mean.
        median_kl: Their median.
        p99_kl: The value that 99 % of them do not exceed.
        max_kl: The largest.
        top1_agreement: Share of positions where both hold the same token for the likeliest.
        rms_probability_difference: Root of the mean squared difference of the probabilities that
            both give to the token of the text.
    """

    positions: int
    mean_kl: float
    median_kl: float
    p99_kl: float
    max_kl: float
    top1_agreement: float
    rms_probability_difference: float


class Divergence:
    """Collects positions; of each it keeps a few numbers."""

    def __init__(self) -> None:
        self._divergences: list[np.ndarray] = []
        self._same_top = 0
        self._squared_difference = 0.0

    def add(
        self,
        reference: np.ndarray,
        reference_top: np.ndarray,
        log_probabilities: np.ndarray,
        targets: np.ndarray,
    ) -> None:
        """Count some positions.

        Args:
            reference: The reference's natural logarithms of probabilities, ``[n, V]``, each row up
                to a constant.
            reference_top: Its likeliest tokens, int ``[n]``.
            log_probabilities: This model's, float64 ``[n, V]``.
            targets: The tokens of the text, int ``[n]``.
        """
        expected = log_softmax(reference)
        divergences = (np.exp(expected) * (expected - log_probabilities)).sum(axis=1)
        # Rounding must not make the divergence of equal distributions negative.
        self._divergences.append(np.maximum(divergences, 0.0))
        self._same_top += int((log_probabilities.argmax(axis=1) == reference_top).sum())
        rows = np.arange(len(targets))
        difference = np.exp(log_probabilities[rows, targets]) - np.exp(expected[rows, targets])
        self._squared_difference += float((difference**2).sum())

    def report(self) -> DivergenceReport:
        """Sum up what was counted; at least one position."""
        divergences = np.concatenate(self._divergences)
        positions = len(divergences)
        return DivergenceReport(
            positions=positions,
            mean_kl=float(divergences.mean()),
            median_kl=float(np.median(divergences)),
            p99_kl=float(np.quantile(divergences, 0.99)),
            max_kl=float(divergences.max()),
            top1_agreement=self._same_top / positions,
            rms_probability_difference=float(np.sqrt(self._squared_difference / positions)),
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural logarithms of the softmax of each row: ``[n, V]`` to float64 ``[n, V]``."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
