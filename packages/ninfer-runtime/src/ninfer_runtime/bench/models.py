"""Speed of a whole model: prompts, decoding of several sequences, and both together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from ninfer_runtime.bench.traffic import Traffic
from ninfer_runtime.engine.executor import Choice, Executor
from ninfer_runtime.engine.lanes import Lane
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.sampling.params import Sampling, SamplingParams

SAMPLING = Sampling(SamplingParams(0.6, 0.95, 20, 0.0, 1.0, 0.0), seed=7)
"""How tokens are drawn: the steps of the device do not get shorter by a simple choice."""


@dataclass(frozen=True, slots=True)
class Test:
    """One measurement.

    Attributes:
        prompt: Tokens of each prompt that count; 0 for decoding alone.
        generated: Tokens that are decoded after it; 0 for prompts alone.
        depth: Tokens that are executed before and do not count.
        sequences: Sequences at the same time.
    """

    prompt: int
    generated: int
    depth: int = 0
    sequences: int = 1

    @property
    def name(self) -> str:
        """Short name, for example ``tg128@4096 x8``."""
        parts = [f"pp{self.prompt}"] if self.prompt else []
        parts += [f"tg{self.generated}"] if self.generated else []
        depth = f"@{self.depth}" if self.depth else ""
        together = f" x{self.sequences}" if self.sequences > 1 else ""
        return "+".join(parts) + depth + together

    def context(self, repetitions: int) -> int:
        """Tokens of the longest sequence: decoding goes on from one repetition to the next."""
        if self.prompt:
            return self.depth + self.prompt + self.generated
        return max(1, self.depth) + repetitions * self.generated


def run_tests(
    executor: Executor,
    tests: Iterable[Test],
    *,
    repetitions: int,
    warmup: int,
    read_bytes_s: float | None,
    corpus: np.ndarray | None = None,
    advance: Callable[[int, str], None],
) -> Iterator[dict[str, Any]]:
    """Measure tests; one row of results for each.

    Args:
        executor: Ready, with lanes for all sequences.
        tests: What to measure.
        repetitions: How often each is measured.
        warmup: How often each is run before.
        read_bytes_s: What the device reads at most, for the roofline; None leaves it out.
        corpus: Token ids that prompts are cut from, one after the other and from the start again;
            None for random ones.
        advance: Called with 1 and a name for each test that is done.

    Raises:
        RequestError: ``non_finite_logits``: the model computes NaN or infinity.
    """
    traffic = Traffic(executor)
    for test in tests:
        runs = _Run(executor, test, corpus)
        rates = runs.measure(warmup + repetitions)[warmup:]
        tok_s = median(rates)
        row: dict[str, Any] = {
            "test": test.name,
            "prompt": test.prompt,
            "generated": test.generated,
            "depth": test.depth,
            "sequences": test.sequences,
            "tok_s": tok_s,
            "tok_s_mean": mean(rates),
            "tok_s_stddev": stdev(rates) if len(rates) > 1 else 0.0,
            "tok_s_of_runs": rates,
        }
        if not test.prompt:
            context = max(1, test.depth) + (warmup + repetitions / 2) * test.generated
            row |= _decode_bounds(tok_s, test, context, traffic, read_bytes_s)
        elif not test.generated:
            row["tflop_s"] = tok_s * traffic.prefill_flops() / 1e12
        advance(1, test.name)
        yield row


def _decode_bounds(
    tok_s: float, test: Test, context: float, traffic: Traffic, read_bytes_s: float | None
) -> dict[str, Any]:
    num_bytes = traffic.decode_bytes(test.sequences, context)
    row = {
        "ms_per_step": 1e3 * test.sequences / tok_s,
        "mean_context": context,
        "gigabytes_per_step": num_bytes / 1e9,
    }
    if read_bytes_s is not None:
        roofline = test.sequences * read_bytes_s / num_bytes
        row |= {"roofline_tok_s": roofline, "fraction_of_roofline": tok_s / roofline}
    return row


class _Run:
    """Repetitions of one test."""

    def __init__(self, executor: Executor, test: Test, corpus: np.ndarray | None) -> None:
        self._executor = executor
        self._test = test
        self._corpus, self._taken = corpus, 0
        self._rng = np.random.default_rng(20)

    def measure(self, repetitions: int) -> list[float]:
        """Tokens per second of each repetition."""
        if not self._test.prompt:
            return self._decode_alone(repetitions)
        return [self._with_prompts() for _ in range(repetitions)]

    def _decode_alone(self, repetitions: int) -> list[float]:
        test = self._test
        capacity = test.context(repetitions)
        lanes = [self._begin(capacity, max(1, test.depth)) for _ in range(test.sequences)]
        rates = []
        tokens = [0] * test.sequences
        for _ in range(repetitions):
            started = time.perf_counter()
            tokens = self._decode(lanes, tokens, test.generated)
            spent = time.perf_counter() - started
            rates.append(test.sequences * test.generated / spent)
        self._end(lanes)
        return rates

    def _with_prompts(self) -> float:
        test = self._test
        lanes = [self._begin(test.context(1), test.depth) for _ in range(test.sequences)]
        prompts = [self._tokens(test.prompt) for _ in lanes]
        self._executor.device.synchronize()
        started = time.perf_counter()
        tokens: list[int] = []
        for lane, prompt in zip(lanes, prompts, strict=True):
            tokens += self._wait(self._executor.choose(self._prefill(lane, prompt)))
        if test.generated:
            self._decode(lanes, tokens, test.generated)
        spent = time.perf_counter() - started
        self._end(lanes)
        return test.sequences * (test.prompt + test.generated) / spent

    def _decode(self, lanes: list[Lane], tokens: list[int], steps: int) -> list[int]:
        """Decode, one step ahead of what the host knows; returns the last tokens."""
        behind = self._executor.decode(lanes, tokens)
        for _ in range(steps - 1):
            ahead = self._executor.decode(lanes)
            self._wait(behind)
            behind = ahead
        return self._wait(behind)

    def _wait(self, choice: Choice) -> list[int]:
        """The chosen tokens: the speed of a model that computes no numbers would mean nothing."""
        tokens: list[int] = choice.wait().tolist()
        if min(tokens) < 0:
            raise RequestError(
                RequestErrorKind.NON_FINITE_LOGITS,
                f"{self._test.name}: the model computed a logit that is not finite",
                hint="see whether --backend cpu does the same",
            )
        return tokens

    def _begin(self, capacity: int, tokens: int) -> Lane:
        lane = self._executor.begin(capacity, SAMPLING)
        if tokens:
            self._prefill(lane, self._tokens(tokens))
        return lane

    def _prefill(self, lane: Lane, token_ids: np.ndarray) -> Any:
        chunk = self._executor.options.prefill_chunk
        hidden = None
        for begin in range(0, len(token_ids), chunk):
            hidden = self._executor.prefill(lane, token_ids[begin : begin + chunk])
        return hidden

    def _tokens(self, count: int) -> np.ndarray:
        if self._corpus is not None:
            places = np.arange(self._taken, self._taken + count)
            self._taken += count
            return self._corpus.take(places, mode="wrap")
        return self._rng.integers(0, self._executor.options.public_tokens, count)

    def _end(self, lanes: list[Lane]) -> None:
        self._executor.device.synchronize()
        for lane in lanes:
            self._executor.end(lane)
