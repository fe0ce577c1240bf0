"""What layers add to their ops: how weights are stacked and split, and that state is carried."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ninfer_runtime.device import Tensor, get_device
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.kv.formats import FP32
from ninfer_runtime.kv.pages import KVPages, new_pages
from ninfer_runtime.kv.slots import DeltaGeometry, new_slots
from ninfer_runtime.layers.attention import GatedAttention
from ninfer_runtime.layers.embedding import Embedding
from ninfer_runtime.layers.gated_delta_net import GatedDeltaNet
from ninfer_runtime.layers.linear import Linear, StackedLinear
from ninfer_runtime.layers.mlp import GatedMLP
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.models.step import Place, Step, text_step
from ninfer_runtime.ops.gated_delta_net import DeltaSlots, DeltaWeights
from ninfer_runtime.ops.gated_linear import GatedWeight
from ninfer_runtime.ops.rotary_table import rotary_table

DEVICE = get_device("cpu")
D, HD, H, KH = 12, 8, 4, 2
VH, DV, DK, GDN_KH = 4, 6, 5, 2
CHANNELS = 2 * GDN_KH * DK + VH * DV
TOLERANCE = 1e-5  # of sums that BLAS takes in another order where it gets other numbers of rows

Draw = Callable[..., Tensor]


@pytest.fixture
def draw() -> Draw:
    rng = np.random.default_rng(7)
    return lambda *shape: DEVICE.from_host((rng.standard_normal(shape) / 3).astype(np.float32))


def attention_layer(draw: Draw) -> GatedAttention:
    widths = (H * HD, KH * HD, H * HD, KH * HD)
    return GatedAttention(
        StackedLinear([draw(sum(widths), D)], widths),
        OffsetRMSNorm(draw(HD), 1e-6),
        OffsetRMSNorm(draw(HD), 1e-6),
        Linear(draw(D, H * HD)),
        HD,
    )


def delta_net_layer(draw: Draw) -> GatedDeltaNet:
    widths = (CHANNELS, VH * DV, VH, VH)
    return GatedDeltaNet(
        StackedLinear([draw(sum(widths), D)], widths),
        DeltaWeights(draw(4, CHANNELS), draw(VH), draw(VH), draw(DV)),
        Linear(draw(D, VH * DV)),
        1e-6,
    )


def pages_of(count: int) -> KVPages:
    return new_pages(FP32, count, KH, DEVICE, HD)


def slots_of(count: int) -> DeltaSlots:
    return new_slots(DeltaGeometry(VH, DV, DK, CHANNELS), count, 8, DEVICE)


def step_of(columns: list[int], places: list[Place]) -> Step:
    return text_step(DEVICE, [np.zeros(count, np.int32) for count in columns], places)


class Runner:
    """Runs either kind of layer for the places of a step."""

    def __init__(self, layer: GatedAttention | GatedDeltaNet) -> None:
        self.layer = layer
        self.pages, self.slots = pages_of(8), slots_of(4)

    def __call__(self, x: Tensor, columns: list[int], places: list[Place]) -> np.ndarray:
        """Rows [B, C, D] of `x` [B·C, D]."""
        step = step_of(columns, places)
        if isinstance(self.layer, GatedAttention):
            rotation = rotary_table(step.positions, theta=100.0, axes=(0, 1, 2))
            y = self.layer(x, rotation, self.pages, step.spans)
        else:
            y = self.layer(x, self.slots, step.delta)
        return np.asarray(y.compute().array).reshape(len(columns), -1, D)


both_mixers = pytest.mark.parametrize("make", [attention_layer, delta_net_layer])


def test_stacked_projections_equal_separate_ones(draw: Draw):
    weights = [draw(rows, D) for rows in (3, 1, 5)]
    x = draw(4, D)
    for found, weight in zip(StackedLinear(weights, (3, 1, 5))(x), weights, strict=True):
        np.testing.assert_allclose(found.array, Linear(weight)(x).array, atol=TOLERANCE)


@pytest.mark.parametrize("heights", [(9,), (4, 5), (1, 1, 6, 1)])
def test_matrices_may_end_anywhere_between_projections(draw: Draw, heights: tuple[int, ...]):
    whole, x = draw(9, D), draw(4, D)
    ends = np.cumsum(heights)
    weights = [whole[end - height : end] for end, height in zip(ends, heights, strict=True)]
    found = StackedLinear(weights, (3, 1, 5))(x)
    assert [each.shape for each in found] == [(4, 3), (4, 1), (4, 5)]
    together = np.concatenate([each.array for each in found], axis=1)
    np.testing.assert_allclose(together, x.array @ whole.array.T, atol=TOLERANCE)
    assert len({id(each.array.base) for each in found}) == 1  # one buffer holds all of them


def test_matrices_of_other_rows_than_the_projections_are_refused(draw: Draw):
    with pytest.raises(OpArgumentError, match="expected 9 rows, found 8"):
        StackedLinear([draw(3, D), draw(5, D)], (3, 1, 5))


def test_an_input_is_shown_once(draw: Draw):
    seen: list[Tensor] = []
    x = draw(2, D)
    StackedLinear([draw(3, D), draw(4, D)], (2, 5), seen.append)(x)
    assert seen == [x]
    Linear(draw(3, D), seen.append)(x)
    assert seen == [x, x]


def test_mlp_gates_the_first_half_and_multiplies_the_second(draw: Draw):
    gate_up, down, x = draw(14, D), draw(D, 7), draw(3, D)
    found = GatedMLP(GatedWeight((gate_up,)), Linear(down))(x).compute()
    gate, up = np.split(x.array.astype(np.float64) @ gate_up.array.T, 2, axis=1)
    expected = gate / (1 + np.exp(-gate)) * up @ down.array.T
    np.testing.assert_allclose(found.array, expected, atol=1e-4)


def test_mlp_shows_what_its_projections_take(draw: Draw):
    seen: list[Tensor] = []
    gate_up, x = draw(14, D), draw(3, D)
    GatedMLP(GatedWeight((gate_up,)), Linear(draw(D, 7), seen.append), seen.append)(x)
    assert seen[0] is x
    gate, up = np.split(x.array.astype(np.float64) @ gate_up.array.T, 2, axis=1)
    np.testing.assert_allclose(seen[1].array, gate / (1 + np.exp(-gate)) * up, atol=1e-5)
    assert len(seen) == 2


def test_embedding_looks_up_rows(draw: Draw):
    table = draw(9, D)
    rows = Embedding(table)(DEVICE.from_host(np.array([8, 2], np.int32)))
    np.testing.assert_array_equal(rows.array, table.array[[8, 2]])


def test_a_norm_may_add_first(draw: Draw):
    norm, x, added = OffsetRMSNorm(draw(D), 1e-6), draw(3, D), draw(3, D)
    total = x.array + added.array
    found = norm(x, added).array
    np.testing.assert_array_equal(x.array, total)
    np.testing.assert_array_equal(found, norm(DEVICE.from_host(total)).array)


@both_mixers
@pytest.mark.parametrize("cut", [1, 2, 6, 12, 64, 70])
def test_a_mixer_carries_its_state(draw: Draw, make, cut: int):
    layer, x = make(draw), draw(71, D)
    whole = Runner(layer)(x, [71], [Place((0, 1))])
    parts = Runner(layer)
    found = [
        parts(x[:cut], [cut], [Place((5, 2), source=3)]),
        parts(x[cut:], [71 - cut], [Place((5, 2), before=cut, source=3)]),
    ]
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, atol=TOLERANCE)


@both_mixers
def test_sequences_of_a_batch_do_not_show_in_each_other(draw: Draw, make):
    layer = make(draw)
    columns = [3, 0, 5, 1]
    inputs = [draw(9 + count, D) for count in columns]
    places = [Place((6,), 9, 2), Place((1,), 9, 0), Place((0,), 9, 1), Place((4,), 9, 3)]
    runner = Runner(layer)
    for x, place in zip(inputs, places, strict=True):
        runner(x[:9], [9], [Place(place.pages, 0, place.source)])
    batch = np.full((4, 5, D), np.float32(1e3))  # what stands in a missing column does not matter
    for b, (x, count) in enumerate(zip(inputs, columns, strict=True)):
        batch[b, :count] = x.array[9:]
    together = runner(DEVICE.from_host(batch.reshape(20, D)), columns, places)
    for b, (x, count) in enumerate(zip(inputs, columns, strict=True)):
        alone = Runner(layer)(x, [len(x.array)], [Place((0,))])[0, 9:]
        np.testing.assert_allclose(together[b, :count], alone, atol=TOLERANCE)


@both_mixers
def test_a_layer_leaves_its_input(draw: Draw, make):
    x = draw(3, D)
    kept = x.array.copy()
    Runner(make(draw))(x, [3], [Place((0,))])
    np.testing.assert_array_equal(x.array, kept)


def test_attention_keeps_rotated_keys_and_raw_values(draw: Draw):
    layer, x = attention_layer(draw), draw(3, D)
    runner = Runner(layer)
    runner(x, [3], [Place((6,))])
    _, key, _, value = layer.projection(x)
    keys, values = (
        planes.codes.array[6, :, :3] for planes in (runner.pages.key, runner.pages.value)
    )
    np.testing.assert_array_equal(values, value.array.reshape(3, KH, HD).swapaxes(0, 1))
    normed = layer.key_norm(key.reshape(3, KH, HD)).array.swapaxes(0, 1)
    np.testing.assert_array_equal(keys[:, 0], normed[:, 0])  # position 0 is not rotated
    assert not np.allclose(keys[:, 1, :6], normed[:, 1, :6])
    np.testing.assert_array_equal(keys[:, 1, 6:], normed[:, 1, 6:])


def test_attention_is_gated_by_its_own_projection(draw: Draw):
    """The first token sees only itself: what is left is its value, its gate and the output."""
    layer, x = attention_layer(draw), draw(1, D)
    _, _, gate, value = (each.array[0].astype(np.float64) for each in layer.projection(x))
    shared = np.repeat(value.reshape(KH, HD), H // KH, axis=0).reshape(-1)
    assert isinstance(layer.output.weight, Tensor)
    expected = layer.output.weight.array @ (shared / (1 + np.exp(-gate)))
    np.testing.assert_allclose(Runner(layer)(x, [1], [Place((0,))])[0, 0], expected, atol=TOLERANCE)


def test_delta_net_leaves_the_slot_that_it_moves_from(draw: Draw):
    layer, x = delta_net_layer(draw), draw(12, D)
    runner = Runner(layer)
    runner(x[:7], [7], [Place((0,), source=1)])
    slots = (runner.slots.state, runner.slots.records)
    kept = [each.array[1].copy() for each in slots]
    moved = runner(x[7:], [5], [Place((0,), before=7, source=1, destination=2)])
    for each, before in zip(slots, kept, strict=True):
        np.testing.assert_array_equal(each.array[1], before)
    in_place = runner(x[7:], [5], [Place((0,), before=7, source=1)])
    np.testing.assert_array_equal(moved, in_place)
    np.testing.assert_array_equal(slots[0].array[1], slots[0].array[2])
