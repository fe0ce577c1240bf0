"""What it takes to load the experts of a mixture."""

from __future__ import annotations

import tracemalloc
from math import prod
from typing import Any

import numpy as np
import pytest

from ninfer_runtime.device import get_device
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.models.qwen3_5.component_config import parse_text
from ninfer_runtime.models.qwen3_5.config import ModelConfig
from ninfer_runtime.models.qwen3_5.parameters import parameters
from ninfer_runtime.models.qwen3_5.weights import build_text_model
from ninfer_runtime.weights.host import HostWeights

E, D, INNER = 64, 64, 48
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "hidden_size": D,
    "vocab_size": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "layer_types": ["full_attention"] * 2,
    "num_experts": E,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rope_parameters": {
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "mrope_section": [8, 0, 0],
    },
}


class FreshParameters:
    """A `ParameterSource` that makes each value when it is read, and remembers what was read."""

    def __init__(self) -> None:
        self.read_names: list[str] = []

    def read(self, parameter: LogicalParameter) -> np.ndarray:
        self.read_names.append(parameter.name)
        return np.full(parameter.shape, len(self.read_names), np.float32)

    def is_shared(self, name: str, other: str) -> bool:
        return False


@pytest.fixture
def weights() -> HostWeights:
    return host_weights(FreshParameters())


def host_weights(source: FreshParameters) -> HostWeights:
    return HostWeights(parameters(ModelConfig(parse_text(CONFIG))), source, get_device("cpu"))


def test_experts_are_loaded_without_a_second_copy_of_a_bank(weights: HostWeights):
    bank_bytes = 4 * E * 2 * INNER * D
    tracemalloc.start()
    try:
        model = build_text_model(parse_text(CONFIG), host_weights(FreshParameters()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert model.weight_bytes == weights.num_bytes
    # Objects of Python, of which there are some for every parameter, take the rest.
    assert weights.num_bytes < peak < weights.loading_bytes + bank_bytes / 2
    assert weights.loading_bytes < weights.num_bytes + bank_bytes / 8


def test_every_parameter_is_read_once():
    source = FreshParameters()
    build_text_model(parse_text(CONFIG), host_weights(source))
    assert len(source.read_names) == len(set(source.read_names)) == 3 + 2 * (9 + 2 + 3 * E + 3)


def test_a_bank_holds_the_experts_in_order(weights: HostWeights):
    block = "text/layers/1/"
    names = [f"{block}moe/experts/{e}/{role}" for e in range(E) for role in ("gate", "up")]
    bank = weights.bank(names).array
    assert bank.shape == (E * 2 * INNER, D)
    np.testing.assert_array_equal(bank[::INNER, 0], np.arange(1, 2 * E + 1))
    assert bank.flags.c_contiguous
    assert prod(bank.shape) == E * 2 * INNER * D
