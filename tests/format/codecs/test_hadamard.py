from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from ninfer_format import ArtifactError
from ninfer_format.codecs.hadamard import (
    HADAMARD_SCALE,
    hadamard_signs,
    signed_sums,
    transform_blocks,
)

EXPECTED = json.loads(
    (Path(__file__).parents[2] / "data/conformance/vectors/hadamard128.json").read_text()
)


def test_signs_and_scale_are_as_expected() -> None:
    signs = hadamard_signs()
    assert signs.shape == (128, 128)
    assert signs.dtype == np.int8
    assert hashlib.sha256(signs.tobytes()).hexdigest() == EXPECTED["sign_int8_row_major_sha256"]
    assert float(EXPECTED["scale"]) == HADAMARD_SCALE
    assert [int(signs[i, j]) for i, j in ((0, 0), (1, 1), (1, 2), (3, 3), (127, 127))] == [
        *(1, -1, 1, 1),
        -1,
    ]
    with pytest.raises(ValueError, match="read-only"):
        signs[0, 0] = -1


def test_a_unit_vector_becomes_a_row_of_h() -> None:
    unit = np.zeros((1, 256))
    unit[0, 128 + 5] = 1
    found = transform_blocks(unit, axis=1)
    assert np.array_equal(found[0, :128], np.zeros(128))
    assert np.array_equal(found[0, 128:], hadamard_signs()[5] * HADAMARD_SCALE)
    assert np.array_equal(transform_blocks(unit.T, axis=0), found.T)


@pytest.mark.parametrize("axis", [0, 1])
def test_twice_is_the_identity_and_lengths_are_kept(axis: int) -> None:
    values = np.random.default_rng(1).standard_normal((256, 384)).astype(np.float32)
    once = transform_blocks(values, axis)
    assert once.dtype == np.float64
    np.testing.assert_allclose(
        np.sum(once**2, axis=axis), np.sum(values.astype(np.float64) ** 2, axis=axis), rtol=1e-12
    )
    np.testing.assert_allclose(transform_blocks(once, axis), values, rtol=0, atol=1e-14)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_do_not_mix(axis: int) -> None:
    values = np.random.default_rng(2).standard_normal((256, 256))
    whole = transform_blocks(values, axis)
    for begin in (0, 128):
        block = np.s_[begin : begin + 128, :] if axis == 0 else np.s_[:, begin : begin + 128]
        np.testing.assert_allclose(
            whole[block], transform_blocks(values[block], axis), rtol=0, atol=1e-14
        )


def test_both_axes_commute() -> None:
    values = np.random.default_rng(3).standard_normal((128, 256))
    rows_first = transform_blocks(transform_blocks(values, 0), 1)
    columns_first = transform_blocks(transform_blocks(values, 1), 0)
    np.testing.assert_allclose(rows_first, columns_first, rtol=0, atol=1e-13)


def test_sums_of_integers_are_exact_in_single_precision() -> None:
    largest = np.full((128, 128), -510, np.float32)
    sums = signed_sums(signed_sums(largest, 0), 1)
    assert sums.dtype == np.float32
    assert sums[0, 0] == -510 * 128 * 128
    assert np.count_nonzero(sums) == 1
    random = np.random.default_rng(4).integers(-510, 496, (128, 256))
    exact = hadamard_signs().astype(np.int64) @ random
    assert np.array_equal(signed_sums(random.astype(np.float32), 0), exact)


@pytest.mark.parametrize(("shape", "axis"), [((64, 256), 0), ((128, 192), 1), ((256, 64), 1)])
def test_partial_blocks_are_refused(shape: tuple[int, int], axis: int) -> None:
    with pytest.raises(ArtifactError, match=r"whole blocks.*multiple of 128") as raised:
        transform_blocks(np.zeros(shape), axis)
    assert raised.value.category == "codec"
