from __future__ import annotations

import numpy as np
import pytest
from tests.compile.dry_gpu import DryGpu

from ninfer_runtime.bench import op_cases
from ninfer_runtime.bench.op_cases import CASES, Maker
from ninfer_runtime.cli.bench_ops import LINEAR, OPS
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.device import DType
from ninfer_runtime.ops.kernels import every_kernel


@pytest.fixture
def gpu():
    return DryGpu(TYPICAL_TARGETS["sm_90a"])


def test_every_op_of_the_command_has_cases():
    assert (LINEAR, *CASES) == OPS


@pytest.mark.parametrize("op", CASES)
def test_cases_launch_kernels_of_their_op(gpu, monkeypatch, op):
    monkeypatch.setattr(Maker, "fill", lambda self, tensor: None)
    for case in op_cases.cases(op):
        call = case.make(Maker(gpu))
        launched = gpu.needs([call])
        assert launched, case
        assert launched <= every_kernel(op, gpu.target), case
        assert case.num_bytes > 0
        assert case.copies() >= 2


def test_attention_counts_the_keys_that_each_token_sees():
    cases = {case.case: case for case in op_cases.cases("paged_attention")}
    one = cases["int8 B=1 C=1 after 4096"]
    row = 2 * (256 + 4 * 2)
    assert one.num_bytes == 4097 * 4 * row + 3 * 24 * 256 * 2
    assert one.flops == 4 * 24 * 256 * 4097
    assert cases["int8 B=8 C=1 after 4096"].num_bytes == 8 * one.num_bytes
    chunk = cases["bf16 B=1 C=1024 after 7168"]
    assert chunk.flops == 4 * 24 * 256 * sum(7168 + c + 1 for c in range(1024))


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16, DType.FP16, DType.INT8, DType.UINT8])
def test_random_bits_are_numbers_below_two(gpu, dtype):
    tensor = gpu.empty((7, 33), dtype)
    Maker(gpu).fill(tensor)
    values = np.array(tensor.array)
    if dtype is DType.BF16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype.kind == "f":
        assert (np.abs(values) < 2).all()
    else:
        # A float of eight bits without its second one.
        assert (values.view(np.uint8) & 0x40 == 0).all()
    assert len(np.unique(values)) > 20
