"""NumPy meaning of `moe_experts`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.activations import silu
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.reference import values_of
from ninfer_runtime.ops.rounding import load, store


def moe_experts(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    shared_weights: Tensor,
    gate_up: Tensor | PackedWeight,
    down: Tensor | PackedWeight,
    shared_gate_up: Tensor | PackedWeight,
    shared_down: Tensor | PackedWeight,
    out: Tensor,
) -> None:
    """See the contract in the package."""
    rows = load(x)
    routed = _routed(rows, experts.array, _decoded(gate_up), _decoded(down))
    total = np.zeros_like(rows)
    for place in range(experts.shape[1]):
        total += load(weights)[:, place, None] * routed[:, place]
    shared = _expert(rows, values_of(shared_gate_up), values_of(shared_down))
    total += load(shared_weights)[:, None] * shared
    store(out, total)


def _routed(rows: np.ndarray, experts: np.ndarray, gate_up: Tensor, down: Tensor) -> np.ndarray:
    """What each chosen expert makes of its token, [T, A, D]; an expert runs once for all tokens."""
    D, inner = rows.shape[1], down.shape[1]
    results = np.empty((*experts.shape, D), np.float32)
    for expert in np.unique(experts):
        tokens, places = np.nonzero(experts == expert)
        results[tokens, places] = _expert(
            rows[tokens],
            load(gate_up[expert * 2 * inner : (expert + 1) * 2 * inner]),
            load(down[expert * D : (expert + 1) * D]),
        )
    return results


def _expert(rows: np.ndarray, gate_up: np.ndarray, down: np.ndarray) -> np.ndarray:
    gate, up = np.split(rows @ gate_up.T, 2, axis=1)
    product = silu(gate)
    product *= up
    result: np.ndarray = product @ down.T
    return result


def _decoded(weight: Tensor | PackedWeight) -> Tensor:
    """A weight whose rows can be cut out; one that is stored as numbers stays as it is."""
    if isinstance(weight, Tensor):
        return weight
    return weight.device.from_host(values_of(weight))
