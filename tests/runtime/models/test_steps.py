"""Several sequences in one state: what one of them gets has nothing to do with the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.models.lanes import PAGES, Lanes, own_parts
from tests.runtime.models.sequences import BF16_ERROR, logits_of, row_errors, run
from tests.runtime.models.test_random_geometries import AWKWARD, MIXTURE, STANDARD, TOLERANCE, build

from ninfer_format import open_artifact
from ninfer_runtime import builtin_model
from ninfer_runtime.device import DType
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.models.registry import load_model
from ninfer_runtime.models.step import Place, text_step


def check(lanes: Lanes) -> None:
    """Every lane has the logits that its tokens give alone."""
    lanes.compare(
        lambda ids: run(lanes.model, ids, [0, len(ids)]),
        lambda found, alone: np.testing.assert_allclose(found, alone, rtol=0, atol=TOLERANCE),
    )


@pytest.mark.parametrize("config", [STANDARD, AWKWARD, MIXTURE], ids=["standard", "awkward", "moe"])
def test_a_batch_of_sequences_equals_each_alone(config: dict):
    lanes = Lanes(build(config)[0])
    lanes.advance({0: 120, 1: 1, 2: 64})
    lanes.advance({2: 1, 0: 1})
    lanes.advance({1: 70, 0: 0, 2: 3})
    for _ in range(4):
        lanes.advance({0: 1, 1: 1, 2: 1})
    assert [lane.length for lane in lanes.lanes] == [125, 75, 72]
    check(lanes)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 2), st.integers(1, 40), min_size=1), min_size=1, max_size=8
    )
)
def test_any_batching_of_any_split_gives_the_same_logits(steps: list[dict[int, int]]):
    lanes = Lanes(build(AWKWARD, seed=2)[0])
    for counts in steps:
        lanes.advance(counts)
    check(lanes)


def test_ids_in_columns_that_a_sequence_does_not_have_do_not_matter():
    rows = []
    for filler in (0, 99):
        lanes = Lanes(build(AWKWARD)[0])
        ids = [lanes.lanes[0].ids[:6], lanes.lanes[1].ids[:2]]
        places = [lane.place() for lane in lanes.lanes[:2]]
        step = text_step(lanes.model.device, ids, places)
        step.token_ids.array[1, 2:] = filler
        hidden = lanes.model.forward(step, lanes.state).array.reshape(2, 6, -1)
        rows.append(np.concatenate((hidden[0], hidden[1, :2])))
    np.testing.assert_array_equal(rows[0], rows[1])


def test_other_lanes_are_left_alone():
    lanes = Lanes(build(STANDARD)[0])
    lanes.advance({0: 70, 1: 50})
    first, second = lanes.lanes[:2]
    kept = own_parts(lanes.state, first)
    lanes.advance({1: 30})
    for before, after in zip(kept, own_parts(lanes.state, first), strict=True):
        np.testing.assert_array_equal(after, before)
    untouched = sorted(set(range(PAGES)) - set(first.pages) - set(second.pages))
    for pages in lanes.state.pages:
        assert np.isnan(pages.key.codes.array[untouched]).all()
    for slots in lanes.state.slots:
        assert np.isnan(slots.state.array[lanes.free_slot]).all()


def test_a_sequence_can_be_forked_into_another_slot():
    """The new slot goes on with other tokens, and the old one can go on as if nothing was."""
    lanes = Lanes(build(STANDARD)[0])
    lanes.advance({0: 20})
    lane, model = lanes.lanes[0], lanes.model
    other = lane.ids[60:70]
    step = text_step(model.device, [other], [lane.place(destination=lanes.free_slot)])
    forked = logits_of(model, model.forward(step, lanes.state))
    ids = np.concatenate((lane.ids[:20], other, lane.ids[80:81]))
    expected = run(model, ids, [0, len(ids)])
    np.testing.assert_allclose(forked, expected[20:30], rtol=0, atol=TOLERANCE)
    place = Place(lane.pages, before=30, source=lanes.free_slot)
    last = model.forward(text_step(model.device, [ids[-1:]], [place]), lanes.state)
    np.testing.assert_allclose(logits_of(model, last), expected[30:], rtol=0, atol=TOLERANCE)
    lanes.advance({0: 15})  # its pages after the 20th token are written anew
    check(lanes)


class Bf16Device(CpuDevice):
    """The host with the activations of a GPU."""

    activation_dtype = DType.BF16


def test_activations_may_be_bf16():
    models = []
    for device in (Bf16Device(), CpuDevice()):
        with open_artifact(builtin_model.path()) as artifact:
            models.append(load_model(artifact, device))
    rounded, exact = models
    lanes = Lanes(rounded)
    step = text_step(rounded.device, [lanes.lanes[0].ids[:5]], [lanes.lanes[0].place()])
    hidden = rounded.forward(step, lanes.state)
    assert hidden.dtype is DType.BF16
    assert rounded.logits(hidden).dtype is DType.FP32
    lanes.advance({0: 40, 2: 70})
    for _ in range(3):
        lanes.advance({0: 1, 2: 1})
    for lane in lanes.lanes[::2]:
        ids = lane.ids[: lane.length]
        errors = row_errors(np.concatenate(lane.logits), run(exact, ids, [0, len(ids)]))
        assert 0 < errors.max() < BF16_ERROR
