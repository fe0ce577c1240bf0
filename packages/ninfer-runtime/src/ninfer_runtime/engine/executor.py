"""Runs a model on its device for several sequences: prompts in chunks, then a token each at a time.

Everything that a step needs is given to the device without waiting for it: the executor runs ahead,
and only whoever wants to know a chosen token waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ninfer_runtime.device.base import Recording
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.repetition import Repetition
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.engine.egress import Egress, Returned
from ninfer_runtime.engine.executor_options import MAX_LANES, ExecutorOptions
from ninfer_runtime.engine.lanes import OP, Lane, LaneTable
from ninfer_runtime.engine.step_buffers import StepBuffers
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.feed_tokens import feed_tokens
from ninfer_runtime.ops.sample import MASK_BITS, sample
from ninfer_runtime.sampling.params import Sampling
from ninfer_runtime.sampling.random import Purpose

if TYPE_CHECKING:
    from ninfer_runtime.models.architecture import LanguageModel


@dataclass(frozen=True, slots=True)
class Choice:
    """Tokens that the device chooses.

    Attributes:
        logits: [B, V], fp32: what they are chosen from; valid until the next step of B sequences.
    """

    logits: Tensor
    _tokens: Returned

    def wait(self) -> np.ndarray:
        """The tokens [B]; -1 where a logit is not finite.

        Raises:
            OpArgumentError: `Egress.KEPT` other choices have been made since.
        """
        return self._tokens.wait()


class Executor:
    """Runs a model; called by one thread at a time.

    Args:
        model: The model.
        options: How it is executed.
        batch_sizes: Numbers of sequences that `decode` will be asked for; by default all.

    Raises:
        OpArgumentError: More lanes than the device has room for.
        UnsupportedOpError: The device has no kernel for the model, or not the format of keys.
        DeviceMemoryError: The states do not fit.
    """

    def __init__(
        self,
        model: LanguageModel,
        options: ExecutorOptions,
        batch_sizes: Sequence[int] | None = None,
    ) -> None:
        if not 1 <= options.lanes <= MAX_LANES:
            raise OpArgumentError(OP, "lanes", expected=f"1..{MAX_LANES}", found=options.lanes)
        self.model = model
        self.device = model.device
        self.options = options
        self.state = model.new_state(**options.state_sizes)
        device, lanes = self.device, options.lanes
        self._lanes = LaneTable(
            device,
            num_lanes=lanes,
            max_context=options.max_context,
            vocab_size=model.vocab_size,
        )
        self._masks = device.zeros((1, -(-model.vocab_size // MASK_BITS)), DType.INT32)
        self._sampled = device.zeros((lanes,), DType.INT32)
        self._last_lanes: tuple[Lane, ...] = ()
        self._sampled_lanes: tuple[Lane, ...] = ()
        self._prefilled: Tensor | None = None
        self._egress = Egress(device, lanes)
        self._prefill = self._buffers(1, options.prefill_chunk)
        self._decode = {
            B: self._buffers(B, 1) for B in batch_sizes or range(1, lanes + 1) if lanes >= B
        }
        self._recordings: dict[int, Recording] = {}

    def works(self) -> list[Callable[[], object]]:
        """Steps of every kind, for `Device.needs`; what they leave behind is meaningless."""
        chunks = {self.options.prefill_chunk}
        chunks |= {1 << i for i in range(self.options.prefill_chunk.bit_length())}
        return [
            *(partial(self._decode_work, B) for B in self._decode),
            *(partial(self._prefill_work, T) for T in sorted(chunks)),
            lambda: self._choose_work(self._prefill_work(1)),
            lambda: self._send_nothing(self._prefill),
        ]

    def record(self) -> None:
        """Record the steps of `decode`, while no sequence is being executed.

        Each is run before on sequences of no new tokens.
        """
        if self._lanes.active:
            raise OpArgumentError(OP, "record", expected="no active sequence", found="some")
        capture = self.device.capture if self.options.use_graphs else Repetition
        self._lanes.fields.set_step(0, Purpose.DECODE)
        for B, buffers in self._decode.items():
            self._send_nothing(buffers)
            self._recordings[B] = capture(partial(self._decode_work, B))

    # --- sequences -------------------------------------------------------------------------

    def begin(self, capacity: int, sampling: Sampling) -> Lane:
        """Start a sequence with room for `capacity` executed tokens.

        Raises:
            OpArgumentError: Every lane is taken, or the capacity is outside 1..`max_context`.
        """
        self.device.use()
        return self._lanes.begin(capacity, sampling)

    def end(self, lane: Lane) -> None:
        """End a sequence; its pages and its lane are free for another one."""
        self._lanes.end(lane)

    @property
    def active_bytes(self) -> int:
        """Bytes of the states of the active sequences."""
        active = self._lanes.active
        pages = sum(len(lane.pages) for lane in active)
        return pages * self.page_bytes + len(active) * self.slot_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers."""
        return sum(each.num_bytes for each in self.state.pages) // self.options.num_pages

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot in all layers."""
        return sum(each.num_bytes for each in self.state.slots) // self.options.lanes

    # --- steps -----------------------------------------------------------------------------

    def prefill(self, lane: Lane, token_ids: np.ndarray) -> Tensor:
        """Execute new tokens of one sequence, at most a chunk.

        Args:
            lane: The sequence.
            token_ids: Integers [T].

        Returns:
            Hidden rows [T, D], ready for the output head.
        """
        T, chunk = len(token_ids), self.options.prefill_chunk
        if not 1 <= T <= chunk:
            raise OpArgumentError(OP, "token_ids", expected=f"1..{chunk} tokens", found=T)
        self._check_ids(token_ids)
        self._lanes.check_room(lane, T)
        self._send(self._prefill, (lane,), token_ids[None], Purpose.PREFILL)
        self._prefilled = self._prefill_work(T)
        return self._prefilled

    def choose(self, hidden: Tensor) -> Choice:
        """Choose the token after the last row of what `prefill` has just returned, once.

        Raises:
            OpArgumentError: Other rows than those, or another step has been executed since: the
                settings of its sequences would apply.
        """
        if hidden is not self._prefilled:
            expected = "what prefill returned in the last step"
            raise OpArgumentError(OP, "hidden", expected=expected, found=hidden)
        self._prefilled = None
        logits = self._choose_work(hidden)
        self._sampled_lanes = self._last_lanes
        return self._choice(logits, 1)

    def decode(self, lanes: Sequence[Lane], token_ids: Sequence[int] | None = None) -> Choice:
        """Execute one token each of several sequences and choose the ones after them.

        Args:
            lanes: The sequences, B different ones; their order may change from step to step.
            token_ids: Their tokens; None takes those that the last `decode` or `choose` has chosen,
                which nobody needs to know yet.
        """
        recording = self._recordings.get(len(lanes))
        if recording is None:
            expected = f"one of {', '.join(map(str, self._recordings))} sequences"
            raise OpArgumentError(OP, "lanes", expected=expected, found=len(lanes))
        if len(set(lanes)) < len(lanes):
            raise OpArgumentError(OP, "lanes", expected="different sequences", found="one twice")
        if token_ids is None:
            ids = self._fed_back(lanes)
        else:
            ids = np.array(token_ids, np.int32)
            if len(ids) != len(lanes):
                expected = f"{len(lanes)}, one of each sequence"
                raise OpArgumentError(OP, "token_ids", expected=expected, found=len(ids))
            self._check_ids(ids)
        for lane in lanes:
            self._lanes.check_room(lane, 1)
        self._send(self._decode[len(lanes)], lanes, ids[:, None], Purpose.DECODE)
        recording.replay()
        self._sampled_lanes = self._last_lanes
        return self._choice(recording.result, len(lanes))

    def repeatable_step(
        self, lanes: Sequence[Lane], token_ids: Sequence[int]
    ) -> Callable[[], object]:
        """One step of `decode` as work to be timed again and again.

        It is always at the same place, so that the sequences are good for nothing afterwards.
        """
        ids = np.array(token_ids, np.int32)[:, None]
        self._send(self._decode[len(lanes)], lanes, ids, Purpose.DECODE)
        return partial(self._decode_work, len(lanes))

    def recorded_step(self, lanes: Sequence[Lane]) -> Callable[[], object]:
        """The same, as it has been recorded; after `repeatable_step` with the same sequences."""
        return self._recordings[len(lanes)].replay

    def repeatable_chunk(self, lane: Lane, token_ids: np.ndarray) -> Callable[[], object]:
        """The same of one call of `prefill`."""
        self._send(self._prefill, (lane,), token_ids[None], Purpose.PREFILL)
        return partial(self._prefill_work, len(token_ids))

    def close(self) -> None:
        """Release what was recorded; the memory goes with the executor."""
        self.device.use()
        self.device.synchronize()
        for recording in self._recordings.values():
            recording.close()
        self._recordings.clear()

    # --- inside ----------------------------------------------------------------------------

    def _buffers(self, B: int, columns: int) -> StepBuffers:
        return StepBuffers(
            self.device,
            B,
            columns,
            tables=self._lanes.tables,
            counts=self._lanes.counts,
            masks=self._masks,
            returned=self._egress.tokens,
        )

    def _fed_back(self, lanes: Sequence[Lane]) -> np.ndarray:
        """What `feed_tokens` takes for the tokens chosen last."""
        if not set(lanes) <= set(self._sampled_lanes):
            expected = "sequences of the last step, where no token ids are given"
            raise OpArgumentError(OP, "lanes", expected=expected, found="others")
        return np.array([-1 - self._sampled_lanes.index(lane) for lane in lanes], np.int32)

    def _check_ids(self, token_ids: np.ndarray) -> None:
        """Refuse ids that a device would read beyond the embedding for."""
        smallest, largest = int(token_ids.min()), int(token_ids.max())
        if smallest < 0 or largest >= self.model.vocab_size:
            found = smallest if smallest < 0 else largest
            expected = f"ids in 0..{self.model.vocab_size - 1}"
            raise OpArgumentError(OP, "token_ids", expected=expected, found=found)

    def _send(
        self, buffers: StepBuffers, lanes: Sequence[Lane], token_ids: np.ndarray, purpose: Purpose
    ) -> None:
        columns = token_ids.shape[1]
        indices = np.array([lane.index for lane in lanes])
        fields = self._lanes.fields
        fields.set_step(columns, purpose)
        self._prefilled = None
        buffers.send(fields, indices, token_ids, self._egress.place)
        self._last_lanes = tuple(lanes)
        self._lanes.advance(self._last_lanes, indices, columns)

    def _send_nothing(self, buffers: StepBuffers) -> None:
        """A step of the first lanes; its tokens are meaningless."""
        B = buffers.B
        ids = np.zeros((B, 1), np.int32)
        buffers.send(self._lanes.fields, np.arange(B), ids, self._egress.place)

    def _prefill_work(self, T: int) -> Tensor:
        return self.model.forward(self._prefill.step(T), self.state)

    def _choose_work(self, hidden: Tensor) -> Tensor:
        logits = self.model.logits(hidden[-1:])
        self._sample(logits, self._prefill)
        return logits

    def _decode_work(self, B: int) -> Tensor:
        buffers = self._decode[B]
        step = buffers.step(1)
        feed_tokens(step.token_ids, self._sampled, self._lanes.counts, buffers.counts_row)
        logits = self.model.logits(self.model.forward(step, self.state))
        self._sample(logits, buffers)
        return logits

    def _sample(self, logits: Tensor, buffers: StepBuffers) -> None:
        sample(
            logits,
            buffers.sampling_rows,
            public_tokens=self.options.public_tokens,
            out=self._sampled[: buffers.B],
        )

    def _choice(self, logits: Tensor, B: int) -> Choice:
        return Choice(logits, self._egress.expect(B, self.device.mark()))
