"""Chooses the tokens of one sequence, row by row, with the op on the CPU."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device import DType, Tensor, get_device
from ninfer_runtime.ops.sample import MASK_BITS, SamplingRows, sample
from ninfer_runtime.sampling.params import Sampling
from ninfer_runtime.sampling.random import Purpose


class RowSampler:
    """Keeps the counts that penalties need.

    Args:
        sampling: How tokens are drawn.
        vocab_size: V.
        public_tokens: Only ids below this are chosen.
    """

    def __init__(self, sampling: Sampling, vocab_size: int, public_tokens: int) -> None:
        self.sampling = sampling
        self.public_tokens = public_tokens
        self.counts = np.zeros((1, vocab_size), np.int32)

    def sample(self, logits: np.ndarray, position: int, purpose: Purpose = Purpose.DECODE) -> int:
        """The token after a column, -1 if a logit is not finite."""
        device = get_device("cpu")

        def one(value: float, dtype: type) -> Tensor:
            return device.from_host(np.array([value], dtype))

        floats = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
        seed = np.array([[self.sampling.seed]], np.uint64).view(np.int32)
        rows = SamplingRows(
            **{name: one(getattr(self.sampling.params, name), np.float32) for name in floats},
            top_k=one(self.sampling.params.top_k, np.int32),
            seed=device.from_host(seed),
            position=one(position, np.int32),
            purpose=one(purpose, np.int32),
            counts_row=one(0, np.int32),
            mask_row=one(-1, np.int32),
            returned_place=one(-1, np.int32),
            counts=device.from_host(self.counts),
            masks=device.zeros((1, -(-logits.size // MASK_BITS)), DType.INT32),
            returned=device.zeros((1,), DType.INT32),
        )
        row = device.from_host(np.asarray(logits, np.float32)[None])
        (token,) = device.to_host(sample(row, rows, public_tokens=self.public_tokens)).tolist()
        return int(token)

    def record(self, token: int) -> None:
        """Count a generated token."""
        self.counts[0, token] += 1
