"""The kernels take small tensors of integers as they lie: strided ones are refused, not misread."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.cuda.memory import Arena
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.device import DType, Tensor
from ninfer_runtime.device.cpu import CpuDevice
from ninfer_runtime.device.cuda import WORKSPACE_BYTES
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.kv.pages import new_pages
from ninfer_runtime.ops.attention_inputs import AttentionInputs
from ninfer_runtime.ops.attention_inputs.cuda import attention_inputs
from ninfer_runtime.ops.gated_delta_net.cuda import gated_delta_net
from ninfer_runtime.ops.paged_attention.cuda import paged_attention

B, C = 2, 3


class Recorder(CpuDevice):
    """A GPU's launches, counted, on host memory."""

    kind = "cuda"
    target = TYPICAL_TARGETS["sm_90a"]

    def __init__(self) -> None:
        super().__init__()
        self.workspace = Arena(0, WORKSPACE_BYTES, "workspace")
        self.launches = 0

    def launch(self, *arguments) -> None:
        self.launches += 1


@pytest.fixture
def device():
    return Recorder()


@pytest.fixture
def zeros(device):
    return lambda *shape, dtype=DType.BF16: device.zeros(shape, dtype)


def run_paged_attention(device, zeros, integers):
    tables = zeros(B, 4, dtype=DType.INT32)
    heads = [zeros(B, C, 2, 256) for _ in range(2)]
    pages = new_pages(KV_FORMATS["int8"], 3, 1, device)
    tensors = [*heads, tables, *integers, zeros(B * C, 2 * 256)]
    paged_attention(*tensors, pages=pages, scale=1.0)


@pytest.mark.parametrize(("columns", "launches"), [(3, 2), (40, 3)])
def test_few_rows_need_no_kernel_that_makes_heads_ready(device, zeros, columns, launches):
    """Attention and merge, which for many rows come after the kernel of `attention_inputs`."""
    query, key, value = (zeros(B, columns, count, 256) for count in (2, 1, 1))
    cos, sin = (zeros(B, columns, 32, dtype=DType.FP32) for _ in range(2))
    inputs = AttentionInputs(query, key, value, zeros(256), zeros(256), cos, sin, eps=1e-6)
    integers = [zeros(B, dtype=DType.INT32) for _ in range(3)]
    tensors = [zeros(B, 4, dtype=DType.INT32), *integers, zeros(B * columns, 512)]
    pages = new_pages(KV_FORMATS["int8"], 3, 1, device)
    gate = zeros(B, columns, 2, 256)
    paged_attention(inputs.query, gate, *tensors, pages=pages, scale=1.0, inputs=inputs)
    assert device.launches == launches


def run_attention_inputs(device, zeros, integers):
    tables = zeros(B, 4, dtype=DType.INT32)
    heads = [zeros(B, C, count, 256) for count in (2, 1, 1)]
    angles = [zeros(B, C, 32, dtype=DType.FP32) for _ in range(2)]
    pages = new_pages(KV_FORMATS["int8"], 3, 1, device)
    weights = [zeros(256), zeros(256)]
    tensors = [*heads, *weights, *angles, tables, *integers, zeros(B, C, 2, 256)]
    attention_inputs(*tensors, pages=pages, eps=1e-6)


def run_gated_delta_net(device, zeros, integers):
    inputs = [zeros(B, C, width) for width in (384, 128, 1, 1)]
    gates = [zeros(1, dtype=DType.FP32) for _ in range(2)]
    weights = [zeros(4, 384), *gates, zeros(128)]
    slots = [zeros(2, 1, 128, 128, dtype=DType.FP32), zeros(2, 16, 386)]
    tensors = [*inputs, *weights, *slots, *integers, zeros(B * C, 128)]
    gated_delta_net(*tensors, eps=1e-6, settled=False)


@pytest.mark.parametrize(
    ("run", "count", "place"),
    [
        *((run_paged_attention, 3, place) for place in range(3)),
        *((run_attention_inputs, 3, place) for place in range(3)),
        *((run_gated_delta_net, 6, place) for place in range(6)),
    ],
)
def test_a_strided_vector_of_integers_is_refused(device, zeros, run, count, place):
    integers = [zeros(B, dtype=DType.INT32) for _ in range(count)]
    run(device, zeros, integers)
    assert device.launches > 0
    device.launches = 0
    integers[place] = Tensor(np.zeros((B, 2), np.int32)[:, 0], DType.INT32, device)
    with pytest.raises(UnsupportedOpError):
        run(device, zeros, integers)
    assert device.launches == 0
