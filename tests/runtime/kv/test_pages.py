"""Pages: which formats a device has, and what they take."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType, get_device
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.kv.formats import FP32, KV_FORMATS, kv_formats
from ninfer_runtime.kv.pages import new_pages, page_bytes

DEVICE = get_device("cpu")


class OtherDevice(CpuDevice):
    """A device of another kind, whose arrays lie on the host."""

    kind = "cuda"


def test_the_default_of_a_device_is_its_first_format():
    assert list(kv_formats("cpu")) == ["fp32", "bf16", "int8", "fp8", "nvfp4", "k8v4"]
    assert list(kv_formats("cuda")) == ["bf16", "int8", "fp8", "nvfp4", "k8v4"]


@pytest.mark.parametrize("name", kv_formats("cpu"))
def test_pages_take_what_is_said_before(name: str):
    kv_format = kv_formats("cpu")[name]
    pages = new_pages(kv_format, 3, 2, DEVICE)
    assert pages.num_bytes == 3 * page_bytes(kv_format, 2, DEVICE)
    assert pages.num_bytes == sum(each.array.nbytes for each in pages.tensors)
    assert (pages.num_pages, pages.num_key_value_heads, pages.head_dim) == (3, 2, 256)


def test_bytes_of_a_token():
    """Of one head of 256: as engine specification 4.3 has them."""
    found = {name: page_bytes(each, 1, DEVICE) / 64 for name, each in kv_formats("cpu").items()}
    assert found == {"fp32": 2048, "bf16": 1024, "int8": 528, "fp8": 516, "nvfp4": 288, "k8v4": 402}


def test_fp32_keeps_rows_of_any_size_as_they_are():
    pages = new_pages(FP32, 2, 3, DEVICE, head_dim=20)
    assert pages.head_dim == 20
    assert pages.key.codes.shape == pages.value.codes.shape == (2, 3, 64, 20)
    assert pages.key.codes.dtype is DType.FP32
    rows = np.random.default_rng(0).standard_normal((5, 3, 20)).astype(np.float32)
    for side in (FP32.key, FP32.value):
        np.testing.assert_array_equal(side.codec.decode(*side.encode(rows)), rows)


@pytest.mark.parametrize("name", KV_FORMATS)
def test_other_formats_round_to_bf16_first(name: str):
    rows = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    words = rows.view(np.uint32)
    rounded = ((words + 0x7FFF + (words >> 16 & 1)) & 0xFFFF0000).astype(np.uint32)
    for side in (KV_FORMATS[name].key, KV_FORMATS[name].value):
        for found, expected in zip(
            side.encode(rows), side.encode(rounded.view(np.float32)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_what_a_device_has_not_is_refused():
    with pytest.raises(UnsupportedOpError, match="device cuda for KV format fp32; there are bf16"):
        new_pages(FP32, 1, 1, OtherDevice())
    for kind in (CpuDevice, OtherDevice):
        for make in (
            lambda device: new_pages(KV_FORMATS["int8"], 1, 1, device, head_dim=128),
            lambda device: page_bytes(KV_FORMATS["int8"], 1, device, head_dim=128),
        ):
            with pytest.raises(UnsupportedOpError, match="KV format int8 with heads of 128"):
                make(kind())
