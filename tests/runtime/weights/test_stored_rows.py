"""Slices of a matrix hold, together, what the whole matrix holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.stored_weights import layout_of

from ninfer_format import TensorRecord
from ninfer_runtime.ops.linear.cases import WEIGHT_FORMATS
from ninfer_runtime.ops.linear.packing import pack_on_host
from ninfer_runtime.weights.stored_rows import Run, StoredRows, runs_of


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@pytest.mark.parametrize("limit", [2**13, 2**15])
def test_records_of_slices_are_those_of_the_matrix(sketch, opened, name, limit):
    made = sketch({"a": (name, (384, 192)), "b": (name, (256, 192))})
    made.bind_rows("text/m0", "a", 128, 384)
    made.bind_rows("text/m1", "b", 0, 128)
    artifact = opened(made)
    rows = StoredRows((*runs_of(artifact, "text/m0"), *runs_of(artifact, "text/m1")), 192)

    def records(begin: int, end: int) -> np.ndarray:
        codec = rows.codec(end - begin)
        payload = np.zeros(codec.geometry.num_bytes, np.uint8)
        for extent in rows.extents(begin, end):
            data = artifact.read_range(extent.source, extent.length)
            payload[extent.target : extent.target + extent.length] = np.frombuffer(data, np.uint8)
        if name == "nvfp4":
            plane = codec.geometry.planes["divisors"]
            payload[plane.offset : plane.end].view("<f4")[:] = 1
        return pack_on_host(codec, payload)

    slices = list(rows.slices(limit))
    assert len(slices) > 1
    found = np.concatenate([records(*each) for each in slices])
    np.testing.assert_array_equal(found, records(0, 384))


@given(
    name=st.sampled_from(WEIGHT_FORMATS),
    blocks=st.integers(1, 300),
    columns=st.integers(1, 40).map(lambda count: 64 * count),
    limit=st.integers(2**10, 2**20),
)
def test_slices_follow_each_other_and_fit(name, blocks, columns, limit):
    N = 128 * blocks
    record = TensorRecord("w", (N, columns), name, layout_of(name), offset=0, num_bytes=0)
    rows = StoredRows((Run(record, 0, N * columns),), columns)
    slices = list(rows.slices(limit))
    assert [begin for begin, _ in slices] == [0, *(end for _, end in slices[:-1])]
    assert slices[-1][1] == N
    for begin, end in slices:
        assert begin % rows.block == 0
        fits = rows.codec(end - begin).geometry.num_bytes <= limit
        assert fits or end - begin == rows.block
