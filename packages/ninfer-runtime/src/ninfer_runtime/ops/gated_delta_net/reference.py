"""NumPy meaning of `gated_delta_net`: one sequence after the other, by the ops that it joins."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.causal_conv1d.reference import causal_conv1d
from ninfer_runtime.ops.delta_gates.reference import delta_gates
from ninfer_runtime.ops.gated_delta_rule.reference import gated_delta_rule
from ninfer_runtime.ops.gated_rms_norm.reference import gated_rms_norm

HEAD = 128
HISTORY = 3


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
) -> None:
    """See the contract in the package."""
    ring = records.shape[1]
    out.array[...] = 0
    for s in range(u.shape[0]):
        begin, replays, count = (int(each.array[s]) for each in (position, replayed, columns))
        from_slot, to_slot = int(source.array[s]), int(destination.array[s])
        past = np.arange(begin - HISTORY, begin + replays)
        old = records.array[from_slot][past % ring]
        old[past < 0] = 0
        new = np.concatenate([each.array[s, :count] for each in (u, a, b)], axis=-1)
        current = state.array[from_slot].copy() if begin else np.zeros_like(state.array[0])
        tokens = Tensor(np.concatenate((old, new)), u.dtype, u.device)

        def run(
            first: int, last: int, tokens: Tensor = tokens, state: np.ndarray = current
        ) -> Tensor:
            """Rows [last - first, VH, 128], fp32, of tokens after `position`; advances the state."""
            window = tokens[first : last + HISTORY]
            return _rule(window, state, convolution, a_log, dt_bias)

        stored = replays + int(committed.array[s])
        parts = [run(0, replays), run(replays, stored)]
        state.array[to_slot] = current
        parts.append(run(stored, replays + count))
        rows = np.concatenate([part.array for part in parts])[replays:]
        if to_slot != from_slot:
            records.array[to_slot][past[past >= 0] % ring] = old[past >= 0]
        kept = min(count, ring - HISTORY)
        last = begin + replays + np.arange(count - kept, count)
        records.array[to_slot][last % ring] = new[count - kept :]
        gated_rms_norm(
            Tensor(rows, DType.FP32, u.device),
            z[s : s + 1, :count].reshape(*rows.shape),
            norm,
            out[s : s + 1, :count].reshape(*rows.shape),
            eps=eps,
        )


def _rule(
    window: Tensor, state: np.ndarray, convolution: Tensor, a_log: Tensor, dt_bias: Tensor
) -> Tensor:
    """The delta rule over the tokens of a window after its first three, which are history."""
    device, T = window.device, window.shape[0] - HISTORY
    VH, CH = a_log.shape[0], convolution.shape[1]
    rows = Tensor(np.empty((T, VH, HEAD), np.float32), DType.FP32, device)
    if T == 0:
        return rows
    mixed = Tensor(np.empty((T, CH), window.array.dtype), window.dtype, device)
    history = Tensor(window.array[:HISTORY, :CH].copy(), window.dtype, device)
    causal_conv1d(window[HISTORY:, :CH], convolution, history, mixed)
    g, beta = (Tensor(np.empty((T, VH), np.float32), DType.FP32, device) for _ in range(2))
    a, b = window[HISTORY:, CH : CH + VH], window[HISTORY:, CH + VH :]
    delta_gates(a, b, a_log, dt_bias, g, beta)
    keys = (CH - VH * HEAD) // 2
    query, key = (mixed[:, i * keys : (i + 1) * keys].reshape(T, -1, HEAD) for i in range(2))
    value = mixed[:, 2 * keys :].reshape(T, VH, HEAD)
    gated_delta_rule(query, key, value, g, beta, Tensor(state, DType.FP32, device), rows)
    return rows
