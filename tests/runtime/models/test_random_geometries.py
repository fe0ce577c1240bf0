"""Random models of awkward sizes against the formulas, written out once more in float64."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.models.oracle import oracle_logits

from ninfer_runtime.device import get_device
from ninfer_runtime.errors import OpArgumentError, StartupError
from ninfer_runtime.models.qwen3_5.component_config import parse_text
from ninfer_runtime.models.qwen3_5.config import ModelConfig
from ninfer_runtime.models.qwen3_5.model import TextModel
from ninfer_runtime.models.qwen3_5.parameters import parameters
from ninfer_runtime.models.qwen3_5.weights import build_text_model

TOLERANCE = 2e-4  # the float32 reference of the tiny model differs from itself by 4e-5

STANDARD: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 128,
    "vocab_size": 512,
    "num_hidden_layers": 4,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_parameters": {
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
    },
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
AWKWARD: dict[str, Any] = {
    **STANDARD,
    "hidden_size": 37,
    "vocab_size": 101,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-3,
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "intermediate_size": 51,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "rope_parameters": {
        "rope_theta": 100.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 1, 1],
    },
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 9,
    "linear_num_value_heads": 3,
    "linear_value_head_dim": 13,
    "linear_conv_kernel_dim": 2,
}
ONE_TAP: dict[str, Any] = {**AWKWARD, "linear_conv_kernel_dim": 1}
ATTENTION_ONLY: dict[str, Any] = {
    **{name: value for name, value in STANDARD.items() if not name.startswith("linear_")},
    "num_hidden_layers": 2,
    "layer_types": ["full_attention"] * 2,
    "num_key_value_heads": 4,
    "rope_parameters": {
        "rope_theta": 1e4,
        "partial_rotary_factor": 1.0,
        "mrope_section": [12, 10, 10],
    },
}
MIXTURE: dict[str, Any] = {
    **{name: value for name, value in AWKWARD.items() if name != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 19,
    "shared_expert_intermediate_size": 23,
}
ALL_EXPERTS: dict[str, Any] = {**MIXTURE, "num_experts": 3}
CONFIGS = {
    "standard": STANDARD,
    "awkward": AWKWARD,
    "one_tap": ONE_TAP,
    "attention_only": ATTENTION_ONLY,
    "mixture": MIXTURE,
    "all_experts": ALL_EXPERTS,
}


class RandomParameters:
    """A `ParameterSource`; every value differs from what an untrained model would have."""

    def __init__(self, config: dict, seed: int) -> None:
        rng = np.random.default_rng(seed)
        wanted = parameters(ModelConfig(parse_text(config)))
        self.values = {each.name: self.draw(each.name, each.shape, rng) for each in wanted}

    @staticmethod
    def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        if name.endswith("a_log"):
            values = np.log(rng.uniform(0.01, 16, shape))
        elif name.endswith("dt_bias"):
            values = rng.normal(0.5, 0.5, shape)
        elif name.endswith("gdn/norm"):
            values = rng.normal(1, 0.2, shape)
        elif name.endswith("norm"):
            values = rng.normal(0, 0.2, shape)
        elif name.endswith("convolution"):
            values = rng.normal(0, 0.5, shape)
        elif name.endswith("embedding"):
            values = rng.normal(0, 1, shape)
        else:
            values = rng.normal(0, 0.5 / sqrt(shape[1]), shape)
        return values.astype(np.float32)

    def read(self, parameter) -> np.ndarray:
        return self.values[parameter.name].copy()

    def is_shared(self, name: str, other: str) -> bool:
        return False


def build(config: dict, seed: int = 1) -> tuple[TextModel, dict[str, np.ndarray]]:
    source = RandomParameters(config, seed)
    return build_text_model(parse_text(config), source, get_device("cpu")), source.values


def run(model: TextModel, ids: list[int], cuts: list[int]) -> np.ndarray:
    """Logits of all positions, the sequence executed in parts that end at `cuts`."""
    state = model.new_state(len(ids))
    bounds = [0, *cuts, len(ids)]
    rows = [
        model.logits(model.forward(np.array(ids[begin:end]), state))
        for begin, end in pairwise(bounds)
    ]
    assert state.length == len(ids)
    return np.concatenate(rows)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cuts", [[], [1, 2, 3], [70]])
def test_logits_agree_with_the_formulas(name, cuts):
    config = CONFIGS[name]
    model, weights = build(config)
    ids = np.random.default_rng(3).integers(0, config["vocab_size"], 80).tolist()
    expected = oracle_logits(config, weights, ids)
    assert expected.std() > 0.1  # the comparison is not one of zeros
    np.testing.assert_allclose(run(model, ids, cuts), expected, rtol=0, atol=TOLERANCE)


@settings(deadline=None, max_examples=20)
@given(cuts=st.lists(st.integers(1, 129), max_size=5, unique=True).map(sorted))
def test_any_split_of_a_sequence_gives_the_same_logits(cuts):
    model, _ = build(AWKWARD, seed=2)
    ids = np.random.default_rng(4).integers(0, 101, 130).tolist()
    whole = run(model, ids, [])
    np.testing.assert_allclose(run(model, ids, cuts), whole, rtol=0, atol=TOLERANCE)


def test_token_by_token_equals_one_pass():
    model, _ = build(STANDARD)
    ids = np.random.default_rng(5).integers(0, 512, 100).tolist()
    stepwise = run(model, ids, list(range(1, 100)))
    np.testing.assert_allclose(stepwise, run(model, ids, []), rtol=0, atol=TOLERANCE)


def test_sequences_do_not_touch_each_other():
    model, _ = build(AWKWARD)
    first, second = model.new_state(20), model.new_state(20)
    ids = np.arange(10)
    alone = model.forward(ids, model.new_state(20)).array.copy()
    model.forward(ids[::-1].copy(), first)
    np.testing.assert_array_equal(model.forward(ids, second).array, alone)


@pytest.mark.parametrize("dropped", ["gdn/dt_bias", "gdn/norm", "attention/key_norm", "final_norm"])
def test_each_small_parameter_matters(dropped):
    source = RandomParameters(STANDARD, 1)
    ids = list(range(40))
    expected = oracle_logits(STANDARD, source.values, ids)
    for name, values in source.values.items():
        if name.endswith(dropped):
            values[:] = 0
    model = build_text_model(parse_text(STANDARD), source, get_device("cpu"))
    assert np.abs(run(model, ids, []) - expected).max() > 10 * TOLERANCE


def test_state_reports_its_memory():
    model, _ = build(STANDARD)
    state = model.new_state(1000)
    fixed = 3 * 4 * (3 * 512 + 4 * 64 * 64)
    assert state.num_bytes == fixed
    model.forward(np.arange(5), state)
    assert state.num_bytes == fixed + 256 * 2 * 2 * 64 * 4
    assert (state.length, state.capacity) == (5, 1000)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_memory_of_a_full_state_is_known_before(name):
    model, _ = build(CONFIGS[name])
    state = model.new_state(300)
    model.forward(np.arange(300) % 100, state)
    assert model.state_bytes(300) == state.num_bytes


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (np.array([0, 512]), "ids in 0..511, found 512"),
        (np.array([-1, 3]), "ids in 0..511, found -1"),
        (np.arange(11), "at most 10 tokens, found 11"),
        (np.array([], np.int64), "T >= 1"),
        (np.array([[1, 2]]), "T >= 1"),
        (np.array([1.0]), "integers, found float64"),
    ],
)
def test_wrong_tokens_are_refused_and_change_nothing(ids, said):
    model, _ = build(STANDARD)
    state = model.new_state(10)
    with pytest.raises(OpArgumentError, match=said):
        model.forward(ids, state)
    assert state.length == 0
    expected = model.forward(np.array([5]), model.new_state(10)).array
    np.testing.assert_array_equal(model.forward(np.array([5]), state).array, expected)


def test_wrong_states_are_refused():
    model, _ = build(STANDARD)
    with pytest.raises(OpArgumentError, match="at least 1 token, found 0"):
        model.new_state(0)
    foreign = SimpleNamespace(length=0, capacity=9, num_bytes=0)
    with pytest.raises(OpArgumentError, match="'state'"):
        model.forward(np.array([1]), foreign)


def test_a_model_without_full_attention_is_refused():
    config = {
        name: value
        for name, value in STANDARD.items()
        if name not in ("num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters")
    }
    config["layer_types"] = ["linear_attention"] * 4
    with pytest.raises(StartupError, match="full-attention") as caught:
        build(config)
    assert caught.value.code == "no_full_attention"
