from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import get_device
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.embedding import embedding

ON_CUDA = True


@pytest.mark.parametrize("D", [5, 640])
def test_rows_are_gathered_unchanged(tensor, device, poisoned, values_of, rng, dtype, D):
    table = tensor(rng.standard_normal((11, D)), dtype)
    ids = np.array([10, 0, 0, 3], np.int32)
    out = embedding(device.from_host(ids), table, out=poisoned((4, D), dtype))
    np.testing.assert_array_equal(values_of(out), values_of(table)[ids])


@pytest.mark.parametrize("outside", [-1, 11, 2**31 - 1])
def test_an_id_outside_the_table_is_refused_on_the_cpu(outside):
    device = get_device("cpu")
    ids = device.from_host(np.array([1, outside, 2], np.int32))
    with pytest.raises(OpArgumentError, match=f"ids in 0..10, found {outside} at position 1"):
        embedding(ids, device.from_host(np.ones((11, 5), np.float32)))


def test_wrong_arguments_are_refused(tensor, device):
    ids = device.from_host(np.array([1], np.int32))
    with pytest.raises(OpArgumentError, match="'token_ids'"):
        embedding(tensor(np.ones(3)), tensor(np.ones((11, 5))))
    with pytest.raises(OpArgumentError, match="'token_ids'"):
        embedding(ids.reshape(1, 1), tensor(np.ones((11, 5))))
    with pytest.raises(OpArgumentError, match="'table'"):
        embedding(ids, tensor(np.ones(5)))
