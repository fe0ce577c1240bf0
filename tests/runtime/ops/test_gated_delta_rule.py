from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_runtime.device import DType, get_device
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.gated_delta_rule import gated_delta_rule
from ninfer_runtime.ops.gated_delta_rule.chunked import chunked, inverse_unit_lower
from ninfer_runtime.ops.gated_delta_rule.reference import recurrent, unit_rows

TOLERANCE = 1e-5
SIZES = [  # T, KH, VH, DK, DV
    (1, 1, 1, 1, 1),
    (1, 2, 4, 16, 8),
    (2, 2, 2, 5, 7),
    (63, 1, 3, 16, 24),
    (64, 2, 4, 16, 16),
    (65, 2, 4, 16, 16),
    (200, 1, 2, 32, 8),
]


def oracle(query, key, value, g, beta, state):
    """Token by token and head by head, in float64; returns the rows and the state after them."""
    T, KH, DK = query.shape
    VH = value.shape[1]
    state = state.astype(np.float64)
    rows = np.empty(value.shape)
    for t in range(T):
        for h in range(VH):
            k = key[t, h // (VH // KH)].astype(np.float64)
            q = query[t, h // (VH // KH)].astype(np.float64)
            k, q = k / np.sqrt(k @ k + 1e-6), q / np.sqrt(q @ q + 1e-6)
            state[h] *= np.exp(np.float64(g[t, h]))
            error = beta[t, h] * (value[t, h] - state[h] @ k)
            state[h] += np.outer(error, k)
            rows[t, h] = state[h] @ q / np.sqrt(DK)
    return rows, state


def draw(rng, T, KH, VH, DK, DV, decay=1.0):
    return {
        "query": rng.standard_normal((T, KH, DK)).astype(np.float32),
        "key": rng.standard_normal((T, KH, DK)).astype(np.float32),
        "value": rng.standard_normal((T, VH, DV)).astype(np.float32),
        "g": -decay * rng.random((T, VH)).astype(np.float32),
        "beta": rng.random((T, VH)).astype(np.float32),
        "state": rng.standard_normal((VH, DV, DK)).astype(np.float32),
    }


@pytest.mark.parametrize(("T", "KH", "VH", "DK", "DV"), SIZES)
@pytest.mark.parametrize("strided", [False, True])
def test_matches_the_recurrence(
    tensor, poisoned, values_of, assert_rounded_once, rng, dtype, T, KH, VH, DK, DV, strided
):
    arrays = draw(rng, T, KH, VH, DK, DV)
    activations = {
        name: tensor(arrays.pop(name), dtype, strided=strided) for name in ("query", "key", "value")
    }
    gates = {name: tensor(array) for name, array in arrays.items()}
    expected, state = oracle(
        *map(values_of, activations.values()), *(gates[name].array.copy() for name in gates)
    )
    out = poisoned((T, VH, DV), dtype)
    assert gated_delta_rule(**activations, **gates, out=out) is out
    assert_rounded_once(out, expected, TOLERANCE)
    assert_rounded_once(gates["state"], state, TOLERANCE)


def prepared(arrays):
    """Arguments of both forms, which take unit rows."""
    scale = np.float32(arrays["query"].shape[-1] ** -0.5)
    return (
        unit_rows(arrays["query"]) * scale,
        unit_rows(arrays["key"]),
        arrays["value"],
        arrays["g"],
        arrays["beta"],
    )


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize(
    "case", ["repeated_keys", "strong_decay", "mixed_decay", "tiny_rows", "no_decay"]
)
def test_hard_inputs_stay_accurate(rng, form, case):
    arrays = draw(rng, 150, 2, 4, 32, 16)
    if case == "repeated_keys":  # (I + A)⁻¹ is small, but powers of A are huge
        arrays["key"][:] = arrays["key"][:1]
        arrays["beta"][:], arrays["g"][:] = 1, 0
    elif case == "strong_decay":
        arrays["g"] *= 60
    elif case == "mixed_decay":  # a sum of decays in the thousands beside differences of 0.01
        arrays["g"][:] = -0.01
        arrays["g"][::16] = -400
    elif case == "tiny_rows":  # of a squared length not far above the epsilon
        arrays["query"] *= np.float32(3e-4)
        arrays["key"] *= np.float32(3e-4)
    else:
        arrays["g"][:] = 0
    expected, state = oracle(**arrays)
    found = arrays["state"].copy()
    rows = form(*prepared(arrays), found)
    np.testing.assert_allclose(rows, expected, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(found, state, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 2, 16, 64, 128])
def test_the_chunk_size_does_not_show(rng, chunk):
    arrays = draw(rng, 77, 1, 2, 16, 8)
    expected_state, found_state = arrays["state"].copy(), arrays["state"].copy()
    q, k, v, g, beta = prepared(arrays)
    expected = recurrent(q, k, v, g, beta, expected_state)
    found = chunked(q, k, v, g, beta, found_state, chunk=chunk)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(found_state, expected_state, rtol=TOLERANCE, atol=TOLERANCE)


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(1, 70), max_size=4), seed=st.integers(0, 100))
def test_any_split_gives_the_same_rows(cuts, seed):
    device = get_device("cpu")
    arrays = draw(np.random.default_rng(seed), 140, 1, 2, 8, 4)
    whole_state, state = (device.from_host(arrays["state"].copy()) for _ in range(2))
    names = ("query", "key", "value", "g", "beta")
    inputs = {name: device.from_host(arrays[name]) for name in names}
    whole = gated_delta_rule(**inputs, state=whole_state)
    ends = [end for end in np.cumsum(cuts).tolist() if end < 140]
    parts = [
        gated_delta_rule(
            **{name: each[begin:end] for name, each in inputs.items()}, state=state
        ).array
        for begin, end in zip([0, *ends], [*ends, 140], strict=True)
    ]
    np.testing.assert_allclose(np.concatenate(parts), whole.array, atol=TOLERANCE)
    np.testing.assert_allclose(state.array, whole_state.array, atol=TOLERANCE)


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_inverse_of_unit_lower_triangular_matrices(rng, size):
    A = np.tril(rng.standard_normal((3, 2, size, size)), -1) / max(1, size) ** 0.5
    expected = np.linalg.inv(np.eye(size) + A)
    found = inverse_unit_lower(A.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_inverse_with_huge_powers_is_exact():
    A = np.tri(64, k=-1, dtype=np.float32)
    expected = np.eye(64) - np.eye(64, k=-1)
    np.testing.assert_array_equal(inverse_unit_lower(A), expected)


def test_wrong_arguments_are_refused(tensor, rng):
    arrays = draw(rng, 3, 2, 4, 8, 8)
    good = {name: tensor(array) for name, array in arrays.items()}
    wrong = {
        "key": tensor(np.ones((3, 2, 7))),
        "g": tensor(np.ones((3, 2))),
        "beta": tensor(np.ones((3, 4)), DType.BF16),
        "state": tensor(np.ones((4, 8, 8)), DType.BF16),
        "query": tensor(np.ones((3, 16))),
    }
    for argument, value in wrong.items():
        with pytest.raises(OpArgumentError, match=f"'{argument}'"):
            gated_delta_rule(**{**good, argument: value})
    with pytest.raises(OpArgumentError, match="a multiple of 2 heads"):
        gated_delta_rule(**{**good, "value": tensor(np.ones((3, 3, 8)))})
