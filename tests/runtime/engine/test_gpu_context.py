"""The longest context of a real geometry: in all layers, and in the last of eight lanes."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.bench.synthetic import read_geometry, synthetic_model
from ninfer_runtime.engine.executor import Executor
from ninfer_runtime.engine.executor_options import MAX_LANES, ExecutorOptions
from ninfer_runtime.engine.loading import prepare
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.sampling.params import GREEDY

pytestmark = pytest.mark.gpu

CONTEXT = 262_144
CHUNK = 8192


def synthetic(gpu, num_layers=None):
    """The 27B with random weights, or only its first layers."""
    config = read_geometry("qwen3.6-27b")
    if num_layers is not None:
        config["text_config"]["num_hidden_layers"] = num_layers
    return synthetic_model(config, "qwen3_6_27b", gpu)


def last_logits(model, lanes):
    """Logits behind a full context in the last lane, decoded and at the end of the prompt."""
    options = ExecutorOptions(
        KV_FORMATS["int8"], CONTEXT, model.vocab_size, lanes=lanes, prefill_chunk=CHUNK
    )
    executor = Executor(model, options, [1])
    prepare(executor)
    for _ in range(lanes - 1):
        executor.begin(CONTEXT, GREEDY)
    lane = executor.begin(CONTEXT, GREEDY)
    ids = np.random.default_rng(5).integers(0, model.vocab_size, CONTEXT - 1)
    for begin in range(0, len(ids), CHUNK):
        hidden = executor.prefill(lane, ids[begin : begin + CHUNK])
    prompt = executor.choose(hidden)
    rows = [executor.device.to_host(prompt.logits)]
    token = int(prompt.wait()[0])
    assert token >= 0
    rows.append(executor.device.to_host(executor.decode([lane], [token]).logits))
    assert lane.length == CONTEXT
    executor.close()
    return np.concatenate(rows)


def test_a_full_context_gives_the_same_in_the_last_lane_as_in_the_only_one(gpu):
    # Three recurrent layers and one with attention.
    model = synthetic(gpu, 4)
    alone = last_logits(model, 1)
    assert np.isfinite(alone).all()
    assert alone.std() > 0.1
    # The pages of the last lane begin more than 2**31 elements behind the first ones.
    np.testing.assert_array_equal(last_logits(model, MAX_LANES), alone)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_layers_compute_numbers_in_a_full_context(gpu):
    """Weights of 16 GB, and keys and values of 9 GB."""
    logits = last_logits(synthetic(gpu), 1)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.1
