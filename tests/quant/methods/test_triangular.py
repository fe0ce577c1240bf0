from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ninfer_quant.encoders import triangular
from ninfer_quant.encoders.triangular import cholesky_in_place, invert_lower_in_place


@pytest.fixture(params=[16, 40, 512])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sizes of blocks that divide the matrix, leave a rest, and hold all of it."""
    monkeypatch.setattr(triangular, "BLOCK", request.param)
    return int(request.param)


def moments(K: int) -> np.ndarray:
    inputs = np.random.default_rng(K).standard_normal((3 * K, K))
    return inputs.T @ inputs / len(inputs)


@pytest.mark.parametrize("K", [1, 16, 96, 130])
def test_factor_and_inverse_are_those_of_numpy(block: int, K: int):
    matrix = moments(K)
    expected = np.linalg.cholesky(matrix)
    # What is above the diagonal is not read.
    found = np.tril(matrix) + np.triu(np.full_like(matrix, np.nan), 1)
    assert cholesky_in_place(np, found)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    invert_lower_in_place(np, found)
    np.testing.assert_allclose(found, np.linalg.inv(expected), rtol=0, atol=1e-11)
    assert not np.triu(found, 1).any()


@pytest.mark.parametrize("column", [0, 50, 95])
def test_a_matrix_that_is_not_positive_definite_is_told(block: int, column: int):
    matrix = moments(96)
    matrix[column, column] = -1.0
    assert not cholesky_in_place(np, matrix)


def test_no_second_copy_of_the_matrix_is_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(triangular, "BLOCK", 32)
    matrix = moments(1024)
    tracemalloc.start()
    try:
        assert cholesky_in_place(np, matrix)
        invert_lower_in_place(np, matrix)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < matrix.nbytes / 4
