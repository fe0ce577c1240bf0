"""NumPy meaning of `gated_delta_net`: one sequence after the other, by the ops that it joins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.causal_conv1d.reference import causal_conv1d
from ninfer_runtime.ops.delta_gates.reference import delta_gates
from ninfer_runtime.ops.gated_delta_rule.reference import delta_rule
from ninfer_runtime.ops.gated_rms_norm.reference import gated_rms_norm
from ninfer_runtime.ops.rounding import load


def gated_delta_net(
    u: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    convolution: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    state: Tensor,
    records: Tensor,
    source: Tensor,
    destination: Tensor,
    position: Tensor,
    replayed: Tensor,
    columns: Tensor,
    committed: Tensor,
    out: Tensor,
    *,
    eps: float,
    settled: bool,
) -> None:
    """See the contract in the package; what is called has ended, so that all is settled."""
    out = out.reshape(*z.shape)
    steps = (source, destination, position, replayed, columns, committed)
    inputs = (u, a, b)
    for s, step in enumerate(zip(*(each.array.tolist() for each in steps), strict=True)):
        from_slot, to_slot, begin, replays, count, stored = step
        old = _recorded(records.array[from_slot], begin - convolution.shape[0] + 1, begin + replays)
        ring = records.array[to_slot]
        if to_slot != from_slot:
            _record(ring, old, begin + replays)
        history = Tensor(old[: len(old) - replays, : u.shape[2]], u.dtype, u.device)
        started = _begun(state.array, from_slot, to_slot, begin)
        rule = _Rule(convolution, a_log, dt_bias, history, started)
        if replays:
            rule.run(*_split(old[-replays:], inputs))
        for first, last in ((0, stored), (stored, count)):
            if first == last:
                continue
            if first == stored:
                rule.state = rule.state.copy()  # what follows is not stored
            rows = rule.run(*(each.array[s, first:last] for each in inputs))
            gate, result = (each[s : s + 1, first:last].reshape(*rows.shape) for each in (z, out))
            gated_rms_norm(rows, gate, norm, result, eps=eps)
        if count < u.shape[1]:
            out.array[s, count:] = 0
        kept = min(count, len(ring) - convolution.shape[0] + 1)
        new = np.concatenate([each.array[s, count - kept : count] for each in inputs], axis=1)
        _record(ring, new, begin + replays + count)


def _recorded(ring: np.ndarray, begin: int, end: int) -> np.ndarray:
    """The records of positions from `begin` to before `end`, zeros where it is below 0."""
    first = begin % len(ring)
    last = first + end - begin
    tokens = np.concatenate((ring[first:last], ring[: max(0, last - len(ring))]))
    if begin < 0:
        tokens[:-begin] = 0
    return tokens


def _record(ring: np.ndarray, tokens: np.ndarray, end: int) -> None:
    """Write the records of the positions before `end`, without those below 0."""
    begin = end - len(tokens)
    for position in range(max(0, begin), end):
        ring[position % len(ring)] = tokens[position - begin]


def _split(tokens: np.ndarray, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    """What records hold of each of the inputs."""
    ends = np.cumsum([each.shape[2] for each in inputs])
    return np.split(tokens, ends[:-1], axis=1)


def _begun(states: np.ndarray, from_slot: int, to_slot: int, position: int) -> np.ndarray:
    """The state of the destination, which becomes that of the source."""
    state: np.ndarray = states[to_slot]
    if position == 0:
        state[...] = 0
    elif to_slot != from_slot:
        state[...] = states[from_slot]
    return state


@dataclass
class _Rule:
    """The delta rule of one sequence, which tokens run through piece by piece.

    Attributes:
        convolution: See the contract, as the following two.
        a_log: [VH].
        dt_bias: [VH].
        history: [J-1, CH], of the dtype of the tokens; advanced.
        state: [VH, DV, DK]; advanced.
    """

    convolution: Tensor
    a_log: Tensor
    dt_bias: Tensor
    history: Tensor
    state: np.ndarray

    def run(self, u: np.ndarray, a: np.ndarray, b: np.ndarray) -> Tensor:
        """Rows [T, VH, DV], fp32, of T tokens u [T, CH], a and b [T, VH]."""
        device, dtype = self.history.device, self.history.dtype
        T, CH = u.shape
        VH, DV, DK = self.state.shape
        mixed = device.empty((T, CH), dtype)
        causal_conv1d(Tensor(u, dtype, device), self.convolution, self.history, mixed)
        g, beta = (device.empty((T, VH), DType.FP32) for _ in range(2))
        decay, step = (Tensor(each, dtype, device) for each in (a, b))
        delta_gates(decay, step, self.a_log, self.dt_bias, g, beta)
        channels = load(mixed)
        rows = delta_rule(
            channels[:, : CH - VH * DV].reshape(T, -1, DK),
            channels[:, CH - VH * DV :].reshape(T, VH, DV),
            g.array,
            beta.array,
            self.state,
        )
        return Tensor(rows, DType.FP32, device)
