from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.packed_weights import pack_weight
from tests.runtime.stored_weights import random_stored

from ninfer_runtime.device import DType, get_device
from ninfer_runtime.errors import OpArgumentError, UnsupportedOpError
from ninfer_runtime.ops.embedding import embedding
from ninfer_runtime.ops.linear.reference import values_of as packed_values
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS

ON_CUDA = True


@pytest.mark.parametrize("D", [5, 640])
def test_rows_are_gathered_unchanged_on_the_cpu(rng, dtype, D):
    device = get_device("cpu")
    table = device.from_host(rng.standard_normal((11, D)).astype(np.float32), dtype)
    ids = np.array([10, 0, 0, 3], np.int32)
    out = embedding(device.from_host(ids), table)
    np.testing.assert_array_equal(device.to_host(out), device.to_host(table)[ids])


@pytest.mark.gpu
def test_a_table_that_is_not_in_records_has_no_kernel(gpu):
    ids = gpu.from_host(np.array([1], np.int32))
    with pytest.raises(UnsupportedOpError, match="not in records"):
        embedding(ids, gpu.zeros((11, 6), DType.BF16))


@pytest.mark.parametrize("name", RECORD_FORMATS)
@pytest.mark.parametrize("D", [64, 2048])
def test_rows_of_a_packed_table_have_the_values_of_its_words(device, poisoned, rng, dtype, name, D):
    codec, payload = random_stored(rng, name, (256, D))
    table = pack_weight(codec, payload, device)
    expected = packed_values(pack_weight(codec, payload, get_device("cpu")))
    ids = np.concatenate([[255, 0, 0], rng.permutation(256)[:100]]).astype(np.int32)
    out = embedding(device.from_host(ids), table, out=poisoned((103, D), dtype))
    rounded = get_device("cpu").from_host(expected[ids], dtype)
    np.testing.assert_array_equal(device.to_host(out), get_device("cpu").to_host(rounded))


def test_rows_of_a_packed_table_become_activations(device, rng):
    table = pack_weight(*random_stored(rng, "q6_g64_fp16", (33, 128)), device)
    out = embedding(device.from_host(np.array([32, 1], np.int32)), table)
    assert out.shape == (2, 128)
    assert out.dtype is (DType.FP32 if device.kind == "cpu" else DType.BF16)


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
