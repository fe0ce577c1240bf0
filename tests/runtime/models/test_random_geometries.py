"""Random models of awkward sizes against the formulas, written out once more in float64."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.models.conftest import text_model
from tests.runtime.models.oracle import oracle_logits
from tests.runtime.models.sequences import Sequence
from tests.runtime.models.sequences import run as run_parts

from ninfer_runtime.errors import OpArgumentError, StartupError, UnsupportedOpError
from ninfer_runtime.kv.formats import FP32, KV_FORMATS
from ninfer_runtime.models.qwen3_5.component_config import parse_text
from ninfer_runtime.models.qwen3_5.config import ModelConfig
from ninfer_runtime.models.qwen3_5.model import TextModel
from ninfer_runtime.models.qwen3_5.parameters import parameters

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
    return text_model(config, source), source.values


def run(model: TextModel, ids: list[int], cuts: list[int]) -> np.ndarray:
    """Logits of all positions, the sequence executed in parts that end at `cuts`."""
    return run_parts(model, ids, [0, *cuts, len(ids)])


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


@pytest.mark.parametrize("dropped", ["gdn/dt_bias", "gdn/norm", "attention/key_norm", "final_norm"])
def test_each_small_parameter_matters(dropped):
    source = RandomParameters(STANDARD, 1)
    ids = list(range(40))
    expected = oracle_logits(STANDARD, source.values, ids)
    for name, values in source.values.items():
        if name.endswith(dropped):
            values[:] = 0
    model = text_model(STANDARD, source)
    assert np.abs(run(model, ids, []) - expected).max() > 10 * TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
def test_the_memory_of_a_state_is_known_before(name):
    model, _ = build(CONFIGS[name])
    sizes: dict[str, Any] = {"num_pages": 5, "num_slots": 3, "ring": 6, "kv_format": FP32}
    state = model.new_state(**sizes)
    assert model.state_bytes(**sizes) == state.num_bytes
    taken = [tensor.array.nbytes for pages in state.pages for tensor in pages.tensors]
    taken += [each.array.nbytes for slots in state.slots for each in (slots.state, slots.records)]
    assert state.num_bytes == sum(taken)


def test_pages_of_a_state_hold_64_tokens_and_slots_hold_records():
    model, _ = build(STANDARD)
    state = model.new_state(num_pages=5, num_slots=3, ring=6, kv_format=FP32)
    assert state.num_bytes == (
        5 * 64 * 2 * 2 * 64 * 4  # one attention layer: keys and values of two heads of 64
        + 3 * 3 * 4 * (4 * 64 * 64 + 6 * (512 + 2 * 4))  # three recurrent ones, three slots each
    )


@pytest.mark.parametrize("name", ["bf16", "int8", "fp8", "nvfp4", "k8v4"])
def test_formats_that_code_rows_of_256_refuse_other_heads(name):
    model, _ = build(STANDARD)
    with pytest.raises(UnsupportedOpError, match=f"{name} with heads of 64"):
        model.new_state(num_pages=1, num_slots=1, ring=4, kv_format=KV_FORMATS[name])


def test_ids_outside_the_vocabulary_are_refused():
    model, _ = build(STANDARD)
    for ids, found in ([0, 512], "512 at position 1"), ([-1, 3], "-1 at position 0"):
        with pytest.raises(OpArgumentError, match=rf"ids in 0..511, found {found}"):
            Sequence(model, 10).forward(ids)


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
