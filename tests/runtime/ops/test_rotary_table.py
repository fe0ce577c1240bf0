from __future__ import annotations

import math

import numpy as np
import pytest

from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.rotary_table import rotary_table

ON_CUDA = True
THETA = 1e7
AXES = (0, 1, 2, 0, 1, 2, 0, 0)


def table(device, positions, axes=AXES):
    return rotary_table(
        device.from_host(np.asarray(positions, np.int32)), theta=THETA, axes=tuple(axes)
    )


def test_angles_follow_the_axis_of_their_pair(device, values_of):
    positions = np.array([[0, 5, 262143], [0, 7, 3], [0, 2, 100]])
    cos, sin = table(device, positions)
    for token in range(3):
        for pair, axis in enumerate(AXES):
            angle = positions[axis, token] * THETA ** (-2 * pair / (2 * len(AXES)))
            assert values_of(cos)[token, pair] == pytest.approx(math.cos(angle), abs=1e-7)
            assert values_of(sin)[token, pair] == pytest.approx(math.sin(angle), abs=1e-7)


def test_table_refuses_wrong_arguments(device):
    with pytest.raises(OpArgumentError, match="'positions'"):
        table(device, [[0, 1], [0, 1]])
    with pytest.raises(OpArgumentError, match="'axes'"):
        table(device, np.zeros((3, 2)), axes=(0, 3))
    with pytest.raises(OpArgumentError, match="'axes'"):
        table(device, np.zeros((3, 2)), axes=())
    with pytest.raises(OpArgumentError, match="'positions'"):
        rotary_table(device.from_host(np.zeros((3, 2), np.float32)), theta=THETA, axes=AXES)


def test_more_pairs_than_one_word_of_axes(device, values_of, rng):
    axes = tuple(int(axis) for axis in rng.integers(0, 3, 50))
    positions = rng.integers(0, 262144, (3, 7))
    cos, _ = table(device, positions, axes)
    angles = positions[list(axes)].T * THETA ** (-np.arange(50) / 50)
    np.testing.assert_allclose(values_of(cos), np.cos(angles), atol=1e-7)
