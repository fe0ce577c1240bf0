"""What layers add to their ops: how weights are stacked and split, and that state is carried."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ninfer_runtime.device import Tensor, get_device
from ninfer_runtime.kv import DeltaNetState, KVCache
from ninfer_runtime.layers.attention import GatedAttention
from ninfer_runtime.layers.embedding import Embedding
from ninfer_runtime.layers.gated_delta_net import GatedDeltaNet
from ninfer_runtime.layers.linear import Linear, StackedLinear
from ninfer_runtime.layers.mlp import GatedMLP
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.ops.rotary_table import rotary_table

DEVICE = get_device("cpu")
D, HD, H, KH = 12, 8, 4, 2
VH, DV, DK, GDN_KH = 4, 6, 5, 2


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    rng = np.random.default_rng(7)
    return lambda *shape: DEVICE.from_host((rng.standard_normal(shape) / 3).astype(np.float32))


def attention_layer(draw) -> GatedAttention:
    widths = (H * HD, KH * HD, H * HD, KH * HD)
    return GatedAttention(
        StackedLinear(draw(sum(widths), D), widths),
        OffsetRMSNorm(draw(HD), 1e-6),
        OffsetRMSNorm(draw(HD), 1e-6),
        Linear(draw(D, H * HD)),
        HD,
    )


def delta_net_layer(draw) -> GatedDeltaNet:
    channels = 2 * GDN_KH * DK + VH * DV
    widths = (channels, VH * DV, VH, VH)
    return GatedDeltaNet(
        StackedLinear(draw(sum(widths), D), widths),
        draw(4, channels),
        draw(VH),
        draw(VH),
        draw(DV),
        Linear(draw(D, VH * DV)),
        1e-6,
    )


def rotation(begin: int, end: int) -> tuple[Tensor, Tensor]:
    positions = np.tile(np.arange(begin, end, dtype=np.int32), (3, 1))
    return rotary_table(DEVICE.from_host(positions), theta=100.0, axes=(0, 1, 2))


def test_stacked_projections_equal_separate_ones(draw):
    weights = [draw(rows, D) for rows in (3, 1, 5)]
    stacked = DEVICE.from_host(np.concatenate([weight.array for weight in weights]))
    x = draw(4, D)
    for found, weight in zip(StackedLinear(stacked, (3, 1, 5))(x), weights, strict=True):
        np.testing.assert_allclose(found.array, Linear(weight)(x).array, atol=1e-5)


def test_mlp_gates_the_first_half_and_multiplies_the_second(draw):
    gate_up, down, x = draw(14, D), draw(D, 7), draw(3, D)
    found = GatedMLP(StackedLinear(gate_up, (7, 7)), Linear(down))(x)
    gate, up = np.split(x.array.astype(np.float64) @ gate_up.array.T, 2, axis=1)
    expected = gate / (1 + np.exp(-gate)) * up @ down.array.T
    np.testing.assert_allclose(found.array, expected, atol=1e-4)


def test_embedding_looks_up_rows(draw):
    table = draw(9, D)
    rows = Embedding(table)(DEVICE.from_host(np.array([8, 2], np.int32)))
    np.testing.assert_array_equal(rows.array, table.array[[8, 2]])


@pytest.mark.parametrize("cut", [1, 6, 12])
def test_attention_carries_its_cache(draw, cut):
    layer, x = attention_layer(draw), draw(13, D)
    whole = layer(x, rotation(0, 13), KVCache(KH, HD, 13, DEVICE))
    cache = KVCache(KH, HD, 13, DEVICE)
    parts = [layer(x[:cut], rotation(0, cut), cache), layer(x[cut:], rotation(cut, 13), cache)]
    found = np.concatenate([part.array for part in parts])
    np.testing.assert_allclose(found, whole.array, atol=1e-5)
    assert cache.length == 13


def test_attention_caches_rotated_keys_and_raw_values(draw):
    layer, x = attention_layer(draw), draw(3, D)
    cache = KVCache(KH, HD, 4, DEVICE)
    layer(x, rotation(0, 3), cache)
    _, key, _, value = layer.projection(x)
    keys, values = cache.append(
        DEVICE.from_host(np.zeros((1, KH, HD), np.float32)),
        DEVICE.from_host(np.zeros((1, KH, HD), np.float32)),
    )
    np.testing.assert_array_equal(values.array[:3], value.array.reshape(3, KH, HD))
    normed = layer.key_norm(key.reshape(3, KH, HD)).array
    np.testing.assert_array_equal(keys.array[0], normed[0])  # position 0 is not rotated
    assert not np.allclose(keys.array[1, :, :6], normed[1, :, :6])
    np.testing.assert_array_equal(keys.array[1, :, 6:], normed[1, :, 6:])


@pytest.mark.parametrize("cut", [1, 2, 6, 12])
def test_delta_net_carries_its_state(draw, cut):
    layer, x = delta_net_layer(draw), draw(13, D)
    channels = layer.convolution.shape[1]
    whole_state, state = (DeltaNetState(4, channels, VH, DV, DK, DEVICE) for _ in range(2))
    whole = layer(x, whole_state)
    found = np.concatenate([layer(x[:cut], state).array, layer(x[cut:], state).array])
    np.testing.assert_allclose(found, whole.array, atol=1e-5)
    np.testing.assert_allclose(state.recurrent.array, whole_state.recurrent.array, atol=1e-5)
    np.testing.assert_allclose(state.history.array, whole_state.history.array, atol=1e-5)


@pytest.mark.parametrize("make", [attention_layer, delta_net_layer])
def test_a_layer_leaves_its_input(draw, make):
    layer, x = make(draw), draw(3, D)
    kept = x.array.copy()
    if isinstance(layer, GatedAttention):
        layer(x, rotation(0, 3), KVCache(KH, HD, 3, DEVICE))
    else:
        layer(x, DeltaNetState(4, layer.convolution.shape[1], VH, DV, DK, DEVICE))
    np.testing.assert_array_equal(x.array, kept)
