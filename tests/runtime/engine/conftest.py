"""A program and a text side that follow a script, so that engine tests need no weights.

Token t is the letter ``chr(96 + t)``; token 0 is the stop token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.sampling.row_sampler import RowSampler

from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.frontend import Frontend
from ninfer_runtime.engine.handle import GenerationHandle
from ninfer_runtime.engine.model_info import ModelInfo
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.engine.program import MemorySummary, PrefillStep, SequenceHandle
from ninfer_runtime.engine.request import (
    FinishReason,
    GenerationResult,
    GenerationStart,
    OutputDelta,
    OutputSink,
    PreparedPrompt,
    PromptInput,
    PromptProgress,
    RequestOptions,
    ToolCall,
)
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.sampling.params import GREEDY, Sampling, SamplingOverrides, SamplingParams
from ninfer_runtime.sampling.random import Purpose

VOCAB = 27
STOP = 0
WAIT_S = 20.0


class ScriptedProgram:
    """Chooses the tokens of `script` after every prompt, then letter z for ever."""

    def __init__(
        self, script: Sequence[int], *, chunk: int, positions: int, vocab_size: int
    ) -> None:
        self.script = script
        self.chunk = chunk
        self.vocab_size = vocab_size
        self.max_position_embeddings = positions
        self.calls: list[tuple[object, ...]] = []
        self.before_unit: Callable[[str, int], None] = lambda unit, count: None
        self.is_closed = False
        self._prompt: tuple[int, ...] = ()
        self._processed = 0
        self._produced = 0
        self._units = 0
        self._generation = 0
        self._sampler = RowSampler(GREEDY, vocab_size, vocab_size)

    def begin(self, token_ids: Sequence[int], capacity: int, sampling: Sampling) -> SequenceHandle:
        self.calls.append(("begin", tuple(token_ids), capacity))
        self._generation += 1
        self._sampler = RowSampler(sampling, self.vocab_size, self.vocab_size)
        self._prompt, self._processed, self._produced, self._units = tuple(token_ids), 0, 0, 0
        return SequenceHandle(self._generation)

    def advance_prefill(self, handle: SequenceHandle) -> PrefillStep:
        self._unit("prefill", handle)
        self._processed = min(self._processed + self.chunk, len(self._prompt))
        is_last = self._processed == len(self._prompt)
        return PrefillStep(self._processed, self._choose(Purpose.PREFILL) if is_last else None)

    def decode(self, handle: SequenceHandle, token_id: int) -> int:
        self._unit("decode", handle, token_id)
        self._processed += 1
        self._sampler.record(token_id)
        return self._choose(Purpose.DECODE)

    def finish(self, handle: SequenceHandle) -> None:
        self.calls.append(("finish", handle.generation))

    def discard(self, handle: SequenceHandle) -> None:
        self.calls.append(("discard", handle.generation))

    def score(self, token_ids: Sequence[int], first_target: int, public_tokens: int) -> np.ndarray:
        return np.zeros(len(token_ids) - first_target, np.float32)

    def target_logits(
        self, token_ids: Sequence[int], first_target: int, public_tokens: int
    ) -> Generator[np.ndarray, None, None]:
        yield np.zeros((len(token_ids) - first_target, public_tokens), np.float32)

    def memory(self) -> MemorySummary:
        return MemorySummary(weight_bytes=0, sequence_bytes=0, sequence_peak_bytes=0)

    def close(self) -> None:
        self.is_closed = True

    def names(self) -> list[object]:
        return [call[0] for call in self.calls]

    def _unit(self, unit: str, handle: SequenceHandle, *details: object) -> None:
        assert handle.generation == self._generation
        self.calls.append((unit, *details))
        self._units += 1
        self.before_unit(unit, self._units)

    def _choose(self, purpose: Purpose) -> int:
        token = self._sampler.sample(self._logits(), self._processed - 1, purpose)
        if token < 0:
            raise RequestError(RequestErrorKind.NON_FINITE_LOGITS, "a logit is not finite")
        return token

    def _logits(self) -> np.ndarray:
        token = self.script[self._produced] if self._produced < len(self.script) else VOCAB - 1
        self._produced += 1
        logits = np.zeros(self.vocab_size, np.float32)
        logits[token] = 50.0
        return logits


class ScriptedOutput:
    """One letter per token."""

    def __init__(self, options: RequestOptions, frontend: ScriptedFrontend) -> None:
        self._options = options
        self._frontend = frontend
        self.content = ""
        self.reasoning = ""
        self.tool_calls: tuple[ToolCall, ...] = ()
        self.token_ids: list[int] = []
        self.reasoning_tokens = 0
        self.matched_stop_string: str | None = None
        self.finish_reason: FinishReason | None = None
        self.closed_with: FinishReason | None = None

    def accept(self, token_id: int) -> tuple[tuple[OutputDelta, ...], FinishReason | None]:
        self._frontend.on_token(token_id)
        self.token_ids.append(token_id)
        if token_id == STOP and not self._options.ignore_eos:
            self.finish_reason = FinishReason.STOP_TOKEN
            return (), self.finish_reason
        letter = chr(96 + token_id)
        self.content += letter
        return (OutputDelta("content", letter, len(self.token_ids)),), None

    def close(self, reason: FinishReason) -> tuple[OutputDelta, ...]:
        assert self.closed_with is None
        self.closed_with = reason
        deltas = self._frontend.on_close(self)
        self.finish_reason = self.finish_reason or reason
        return deltas


class Vocabulary:
    public_tokens = VOCAB


class ScriptedFrontend:
    """Takes raw token ids and writes letters; the hooks stand for faults and held-back text."""

    def __init__(self) -> None:
        self.tokenizer = Vocabulary()
        self.on_token: Callable[[int], None] = lambda token_id: None
        self.on_close: Callable[[ScriptedOutput], tuple[OutputDelta, ...]] = lambda output: ()
        self.outputs: list[ScriptedOutput] = []

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        assert isinstance(prompt.raw_prompt, tuple)
        return prompt_of(prompt.raw_prompt)

    def sampling_preset(self, thinking: bool) -> SamplingParams:
        return SamplingParams(1.0, 0.95, 20, 0.0, 0.0, 0.0)

    def open_output(self, prompt: PreparedPrompt, options: RequestOptions) -> ScriptedOutput:
        self.outputs.append(ScriptedOutput(options, self))
        return self.outputs[-1]


class RecordingSink:
    """Keeps the events; `react` may do something with each."""

    def __init__(self, react: Callable[[object], None] = lambda event: None) -> None:
        self.events: list[object] = []
        self._react = react

    def start(self, event: GenerationStart) -> None:
        self._take(event)

    def progress(self, event: PromptProgress) -> None:
        self._take(event)

    def publish(self, event: OutputDelta) -> None:
        self._take(event)

    def _take(self, event: object) -> None:
        self.events.append(event)
        self._react(event)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, OutputDelta))


class Gate:
    """Holds the worker in the n-th unit of a kind until the test opens it."""

    def __init__(self, unit: str, count: int = 1) -> None:
        self._unit = unit
        self._count = count
        self._seen = 0
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self, unit: str, count: int) -> None:
        if unit == self._unit:
            self._seen += 1
            if self._seen == self._count:
                self._reached.set()
                assert self._opened.wait(WAIT_S)

    def wait_until_reached(self) -> None:
        assert self._reached.wait(WAIT_S)

    def open(self) -> None:
        self._opened.set()


def greedy_request(max_output_tokens: int = 10, **options: Any) -> RequestOptions:
    options.setdefault("sampling", SamplingOverrides(greedy=True))
    options.setdefault("seed", 0)
    return RequestOptions(max_output_tokens=max_output_tokens, **options)


def prompt_of(token_ids: Sequence[int]) -> PreparedPrompt:
    return PreparedPrompt(tuple(token_ids), "", starts_in_reasoning=False)


INFO = ModelInfo(
    name="scripted",
    architecture="Scripted",
    vocab_size=VOCAB,
    public_tokens=VOCAB,
    max_context=0,
    max_position_embeddings=1000,
    hidden_size=1,
    num_parameters=1,
    payload_bytes=1,
    formats=("bf16",),
)


class Scene:
    """An engine around scripted parts, and short ways to use it."""

    wait_s = WAIT_S

    def __init__(self, program: ScriptedProgram, frontend: Frontend | None, **options: Any) -> None:
        self.program = program
        self.frontend = frontend or ScriptedFrontend()
        engine_options = EngineOptions(model=Path("scripted.ninfer"), **options)
        self.engine = Engine.from_parts(program, self.frontend, engine_options, INFO)
        self._gates: list[Gate] = []

    def submit(
        self,
        prompt: Sequence[int] = (5, 6),
        max_output_tokens: int = 10,
        *,
        sink: OutputSink | None = None,
        deadline: float | None = None,
        **options: Any,
    ) -> GenerationHandle:
        return self.engine.submit(
            prompt_of(prompt),
            greedy_request(max_output_tokens, **options),
            sink,
            deadline=deadline,
        )

    def run(self, prompt: Sequence[int] = (5, 6), *args: Any, **options: Any) -> GenerationResult:
        return self.submit(prompt, *args, **options).wait(WAIT_S)

    def sink(self, react: Callable[[object], None] = lambda event: None) -> RecordingSink:
        return RecordingSink(react)

    def hold(self, unit: str, count: int = 1) -> Gate:
        """Hold the worker in the n-th unit of a kind from now on."""
        gate = Gate(unit, count)
        self._gates.append(gate)
        self.program.before_unit = gate
        return gate

    def close(self) -> None:
        for gate in self._gates:
            gate.open()
        self.engine.close()


@pytest.fixture
def scene() -> Iterator[Callable[..., Scene]]:
    """Builds engines around scripts, and closes them."""
    scenes: list[Scene] = []

    def build(
        script: Sequence[int] = (1, 2, 3, STOP),
        *,
        chunk: int = 4,
        positions: int = 1000,
        vocab_size: int = VOCAB,
        frontend: Frontend | None = None,
        **options: Any,
    ) -> Scene:
        program = ScriptedProgram(script, chunk=chunk, positions=positions, vocab_size=vocab_size)
        scenes.append(Scene(program, frontend, **options))
        return scenes[-1]

    yield build
    for built in scenes:
        built.close()
