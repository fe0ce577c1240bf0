"""The engine as its callers see it: prepare a prompt, submit it, wait for what comes of it."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ninfer_runtime.engine.admission import check_output_tokens, check_prompt, output_limit
from ninfer_runtime.engine.handle import GenerationHandle
from ninfer_runtime.engine.loading import load
from ninfer_runtime.engine.progress import ShowProgress, show_nothing
from ninfer_runtime.engine.request_queue import QueuedRequest, RequestQueue
from ninfer_runtime.engine.stats import Availability, Counters, RuntimeStats
from ninfer_runtime.engine.worker import Worker
from ninfer_runtime.sampling.params import Sampling

if TYPE_CHECKING:
    from ninfer_runtime.engine.frontend import Frontend
    from ninfer_runtime.engine.model_info import ModelInfo
    from ninfer_runtime.engine.options import EngineOptions
    from ninfer_runtime.engine.program import MemorySummary, Program
    from ninfer_runtime.engine.request import (
        OutputSink,
        PreparedPrompt,
        PromptInput,
        RequestOptions,
    )


class Engine:
    """Runs requests one after another on a thread of its own; a context manager.

    Every method may be called from any thread.

    Args:
        options: What to build it from.
        show: Is told what takes time until the engine is there.

    Raises:
        StartupError: It cannot be built from these options and this artifact.
        ArtifactError: The artifact is damaged.
        UnsupportedConfigError: The artifact's model is not implemented.
    """

    def __init__(self, options: EngineOptions, show: ShowProgress = show_nothing) -> None:
        loaded = load(options, show)
        self._start(loaded.program, loaded.frontend, loaded.options, loaded.info)

    @classmethod
    def from_parts(
        cls, program: Program, frontend: Frontend, options: EngineOptions, info: ModelInfo
    ) -> Self:
        """Build an engine around parts that exist already.

        Args:
            program: Executes sequences; the engine closes it.
            frontend: The text side.
            options: Options; `model` is not opened.
            info: What the engine says about its model.

        Raises:
            StartupError: The options do not fit the program.
        """
        engine = cls.__new__(cls)
        engine._start(program, frontend, options, info)
        return engine

    def _start(
        self, program: Program, frontend: Frontend, options: EngineOptions, info: ModelInfo
    ) -> None:
        self._program = program
        self._frontend = frontend
        max_context = options.resolve_max_context(program.max_position_embeddings)
        self._options = replace(options, max_context=max_context)
        self._info = replace(info, max_context=max_context)
        self._counters = Counters()
        self._queue = RequestQueue(1 + options.max_pending_requests)
        self._worker = Worker(program, self._queue, self._counters)
        self._worker.start()

    @property
    def options(self) -> EngineOptions:
        """The options with every default decided."""
        return self._options

    @property
    def model_info(self) -> ModelInfo:
        """What the engine has loaded."""
        return self._info

    @property
    def max_context(self) -> int:
        """Longest sequence (prompt and output) in tokens."""
        return self._info.max_context

    def availability(self) -> Availability:
        """Whether the engine takes requests."""
        return self._worker.availability

    def stats(self) -> RuntimeStats:
        """Counters since the start and gauges of now."""
        return self._counters.snapshot(len(self._queue))

    def memory(self) -> MemorySummary:
        """What memory is taken."""
        return self._program.memory()

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        """Render and tokenize a prompt, on the caller's thread.

        Raises:
            RequestError: ``invalid_prompt``: the template refuses it.
        """
        return self._frontend.prepare(prompt)

    def submit(
        self,
        prompt: PreparedPrompt,
        options: RequestOptions,
        sink: OutputSink | None = None,
        *,
        deadline: float | None = None,
    ) -> GenerationHandle:
        """Put a request into the queue.

        Args:
            prompt: What to continue.
            options: How to continue it.
            sink: Receives the events; None for a caller that needs the result only.
            deadline: Monotonic time in seconds (`time.monotonic`) until which the request may
                wait; None gives it the engine's ``pending_timeout_s`` from now on.

        Returns:
            The only reference to the request: it is cancelled when the handle is dropped.

        Raises:
            RequestError: ``invalid_prompt``, ``context_length_exceeded``, ``overloaded`` or
                ``unavailable``.
            UsageError: A sampling value or the seed is outside its domain.
        """
        now = time.monotonic()
        check_prompt(prompt, self._frontend.tokenizer.public_tokens, self.max_context)
        check_output_tokens(options.max_output_tokens)
        request = QueuedRequest(
            prompt=prompt,
            limit=output_limit(options.max_output_tokens, len(prompt.token_ids), self.max_context),
            sampling=self._sampling(prompt, options),
            output=self._frontend.open_output(prompt, options),
            sink=sink,
            submitted_at=now,
            deadline=now + self._options.pending_timeout_s if deadline is None else deadline,
        )
        self._queue.submit(request)
        return GenerationHandle(request, self._queue)

    def _sampling(self, prompt: PreparedPrompt, options: RequestOptions) -> Sampling:
        preset = self._frontend.sampling_preset(prompt.starts_in_reasoning)
        seed = secrets.randbits(64) if options.seed is None else options.seed
        return Sampling(options.sampling.apply(preset), seed)

    def close(self) -> None:
        """Stop: waiting requests end with ``unavailable``, the running one is cancelled.

        Every handle has its outcome when this returns. Closing twice is allowed.
        """
        self._worker.stop()
        self._program.close()

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the engine."""
        self.close()
