"""What a step has to move and to compute at least (engine specification, section 16.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.engine.executor import Executor
from ninfer_runtime.kv.pages import PAGE_TOKENS
from ninfer_runtime.layers.embedding import Embedding
from ninfer_runtime.layers.moe import MixtureOfExperts
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.linear.packed_weight import PackedWeight


@dataclass(frozen=True, slots=True)
class Experts:
    """The matrices of the experts of one layer.

    Attributes:
        num_bytes: Of all experts.
        parameters: Of all experts.
        count: Number of experts.
        chosen: Experts of a token.
    """

    num_bytes: int
    parameters: int
    count: int
    chosen: int

    def share(self, tokens: int) -> float:
        """Share of the experts that so many tokens choose, if they choose evenly."""
        return 1 - (1 - self.chosen / self.count) ** tokens


class Traffic:
    """Sizes of a model and of its states.

    Args:
        executor: Has both.

    Attributes:
        num_bytes: Weights that every step reads: all but the table of tokens and the experts.
        parameters: Elements of the matrices among them, but for the output head.
        experts: Those of each layer that has any.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        weights: dict[int, Weight] = {}
        self.experts: list[Experts] = []
        for part in _parts(executor.model, set()):
            if isinstance(part, MixtureOfExperts):
                self.experts.append(_experts(part))
            elif isinstance(part, Tensor | PackedWeight):
                weights[id(part)] = part
        self.num_bytes = sum(weight.num_bytes for weight in weights.values())
        self.parameters = sum(
            prod(weight.shape)
            for weight in weights.values()
            if len(weight.shape) == 2 and weight.shape[0] != executor.model.vocab_size
        )

    def decode_bytes(self, sequences: int, context: float) -> float:
        """Bytes that one step of some sequences reads and writes, each after `context` tokens.

        Embedding rows and activations are left out; states are read once and written once.
        """
        executor = self._executor
        experts = sum(each.num_bytes * each.share(sequences) for each in self.experts)
        cache = context * executor.page_bytes / PAGE_TOKENS
        states = sum(slots.state.num_bytes for slots in executor.state.slots)
        state = 2 * states / executor.options.lanes
        return self.num_bytes + experts + sequences * (cache + state)

    def prefill_flops(self) -> float:
        """Operations of the projections for a token of a prompt; attention comes on top."""
        experts = sum(each.parameters * each.chosen / each.count for each in self.experts)
        return 2 * (self.parameters + experts)


def _experts(layer: MixtureOfExperts) -> Experts:
    banks = (layer.weights.gate_up, layer.weights.down)
    return Experts(
        num_bytes=sum(bank.num_bytes for bank in banks),
        parameters=sum(prod(bank.shape) for bank in banks),
        count=layer.router.shape[0] - 1,
        chosen=layer.experts_per_token,
    )


def _parts(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Weights and mixtures that a model is made of, without the table of its tokens."""
    if id(thing) in seen or isinstance(thing, Embedding):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor | PackedWeight):
        yield thing
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from _parts(item, seen)
    elif type(thing).__module__.startswith("ninfer_runtime."):
        names = list(getattr(thing, "__slots__", None) or vars(thing))
        if isinstance(thing, MixtureOfExperts):
            yield thing
            # Its banks are counted by the mixture.
            seen |= {id(thing.weights.gate_up), id(thing.weights.down)}
        for name in names:
            yield from _parts(getattr(thing, name), seen)
