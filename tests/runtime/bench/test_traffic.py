"""What steps of real models move and compute, against sums by hand."""

from __future__ import annotations

import pytest
from tests.compile.dry_gpu import DryGpu

from ninfer_runtime.bench.synthetic import read_geometry, synthetic_model
from ninfer_runtime.bench.traffic import Traffic
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.engine.executor import Executor
from ninfer_runtime.engine.executor_options import ExecutorOptions
from ninfer_runtime.kv.formats import KV_FORMATS


def traffic_of(geometry, recipe, lanes=1):
    device = DryGpu(TYPICAL_TARGETS["sm_90a"])
    model = synthetic_model(read_geometry(geometry), recipe, device)
    options = ExecutorOptions(KV_FORMATS["int8"], 8192, model.vocab_size, lanes=lanes)
    return Traffic(Executor(model, options))


# Bits of a weight in the formats of the recipe; matrices are [N, K], scales included.
Q4, Q5, Q6, BF16 = 4.25, 5.25, 6.25, 16
D = 5120
ATTENTION = D * ((6144 + 1024) * Q4 + (6144 + 1024) * Q5 + 6144 * Q5)
DELTA_NET = D * (4096 * Q4 + 6144 * Q5 + 6144 * Q5 + 6144 * Q5 + 2 * 48 * BF16)
MLP = D * 17408 * (2 * Q4 + Q5)
DENSE_BYTES = (16 * ATTENTION + 48 * DELTA_NET + 64 * MLP + 248320 * D * Q6) / 8


def test_a_dense_model_reads_every_matrix_but_the_table_of_tokens():
    traffic = traffic_of("qwen3.6-27b", "qwen3_6_27b", lanes=2)
    # Norms, convolutions and factors of rows come on top.
    assert DENSE_BYTES < traffic.num_bytes < 1.001 * DENSE_BYTES
    assert traffic.experts == []
    # Of 64 layers 16 have keys and values of 4 heads: 256 codes and 4 scales of 2 bytes each.
    cache = 16 * 2 * 4 * (256 + 8)
    state = 48 * 48 * 128 * 128 * 4
    base = traffic.num_bytes
    assert traffic.decode_bytes(1, 0) == base + 2 * state
    assert traffic.decode_bytes(8, 4096) == base + 8 * (4096 * cache + 2 * state)
    flops = 2 * D * (16 * 20480 + 48 * (22528 + 96) + 64 * 3 * 17408)
    flops += 2 * 48 * 4 * 10240  # convolutions
    assert traffic.prefill_flops() == flops


def test_a_mixture_reads_the_experts_that_its_tokens_choose():
    traffic = traffic_of("qwen3.6-35b-a3b", "qwen3_6_35b_a3b")
    assert len(traffic.experts) == 40
    assert {(each.count, each.chosen) for each in traffic.experts} == {(256, 8)}
    matrix = 2048 * 512
    assert all(each.parameters == 256 * 3 * matrix for each in traffic.experts)
    all_experts = sum(each.num_bytes for each in traffic.experts)
    bits = 37 * (2 * Q4 + Q5) + 3 * (2 * Q4 + Q6)
    assert all_experts == 256 * matrix * bits / 8
    state = 30 * 32 * 128 * 128 * 4
    read = traffic.decode_bytes(1, 0) - traffic.num_bytes - 2 * state
    assert read == pytest.approx(all_experts * 8 / 256)
    read = traffic.decode_bytes(2, 0) - traffic.num_bytes - 4 * state
    assert read == pytest.approx(all_experts * (1 - (248 / 256) ** 2))
    active = 2048 * (10 * (2 * 4096 + 2 * 512 + 4096) + 30 * (8192 + 4096 + 4096 + 64))
    # Eight experts, the shared one, and the rows that choose and weigh them.
    active += 40 * (9 * 3 * matrix + 257 * 2048) + 30 * 4 * 8192
    assert traffic.prefill_flops() == 2 * active
