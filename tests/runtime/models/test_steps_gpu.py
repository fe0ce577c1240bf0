"""Several sequences in one state on a GPU, against the CPU with each of them alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.models.artifacts import Writer
from tests.runtime.models.lanes import Lanes
from tests.runtime.models.sequences import BF16_ERROR, Sequence, logits_of, row_errors, run
from tests.runtime.models.test_random_geometries import RandomParameters

from ninfer_format import open_artifact
from ninfer_runtime import builtin_model
from ninfer_runtime.device import Device, get_device
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.models.architecture import LanguageModel
from ninfer_runtime.models.registry import load_model
from ninfer_runtime.models.step import Place, text_step

pytestmark = pytest.mark.gpu

BF16 = KV_FORMATS["bf16"]

MIXTURE = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "hidden_size": 256,
    "vocab_size": 512,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "max_position_embeddings": 1024,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {"mrope_section": [11, 11, 10]},
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def load_on(device: Device, path: Path) -> LanguageModel:
    with open_artifact(path) as artifact:
        return load_model(artifact, device)


@pytest.fixture(scope="module")
def model(gpu: Device) -> LanguageModel:
    return load_on(gpu, builtin_model.path())


@pytest.fixture(scope="module")
def reference() -> LanguageModel:
    return load_on(get_device("cpu"), builtin_model.path())


def near(found: np.ndarray, expected: np.ndarray) -> None:
    assert (row_errors(found, expected) < BF16_ERROR).all()


def mostly_near(found: np.ndarray, expected: np.ndarray) -> None:
    """Where two experts are as good, rounding decides, and a token may get the other one."""
    assert (row_errors(found, expected) < BF16_ERROR).mean() > 0.8


def test_a_batch_of_sequences_is_near_each_alone(model: LanguageModel, reference: LanguageModel):
    lanes = Lanes(model, BF16)
    lanes.advance({0: 120, 1: 1, 2: 64})
    lanes.advance({2: 1, 0: 1})
    lanes.advance({1: 70, 0: 0, 2: 3})
    for _ in range(4):
        lanes.advance({0: 1, 1: 1, 2: 1})
    lanes.compare(lambda ids: run(reference, ids, [0, len(ids)]), near)


def test_a_batch_of_a_mixture_is_mostly_near_each_alone(gpu: Device, tmp_path: Path):
    writer = Writer(MIXTURE)
    rng = np.random.default_rng(8)
    for name, values in writer.values.items():
        writer.values[name] = RandomParameters.draw(name, values.shape, rng)
    path = writer.write(tmp_path / "mixture.ninfer")
    lanes, reference = Lanes(load_on(gpu, path), BF16), load_on(get_device("cpu"), path)
    lanes.advance({0: 120, 1: 1, 2: 64})
    for _ in range(8):
        lanes.advance({0: 1, 1: 1, 2: 1})
    lanes.compare(lambda ids: run(reference, ids, [0, len(ids)]), mostly_near)


def test_ids_in_columns_that_a_sequence_does_not_have_do_not_matter(model: LanguageModel):
    rows = []
    for filler in (0, 99):
        lanes = Lanes(model, BF16)
        ids = [lanes.lanes[0].ids[:6], lanes.lanes[1].ids[:2]]
        padded = np.concatenate((ids[1], np.full(4, filler)))
        step = text_step(model.device, [ids[0], padded], [each.place() for each in lanes.lanes[:2]])
        shorter = text_step(model.device, ids, [each.place() for each in lanes.lanes[:2]])
        step = replace(step, spans=shorter.spans, delta=shorter.delta)
        hidden = model.device.to_host(model.forward(step, lanes.state)).reshape(2, 6, -1)
        rows.append(np.concatenate((hidden[0], hidden[1, :2])))
    np.testing.assert_array_equal(rows[0], rows[1])


def test_a_sequence_can_be_forked_into_another_slot(model: LanguageModel, reference: LanguageModel):
    lanes = Lanes(model, BF16)
    lanes.advance({0: 20})
    lane = lanes.lanes[0]
    ids = np.concatenate((lane.ids[:20], lane.ids[60:71]))
    step = text_step(model.device, [ids[20:30]], [lane.place(destination=lanes.free_slot)])
    forked = logits_of(model, model.forward(step, lanes.state))
    expected = run(reference, ids, [0, len(ids)])
    near(forked, expected[20:30])
    place = Place(lane.pages, before=30, source=lanes.free_slot)
    last = model.forward(text_step(model.device, [ids[-1:]], [place]), lanes.state)
    near(logits_of(model, last), expected[30:])
    lanes.advance({0: 15})
    lanes.compare(lambda ids: run(reference, ids, [0, len(ids)]), near)


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_formats_of_the_gpu_give_what_they_give_on_the_cpu(
    model: LanguageModel, reference: LanguageModel, name: str
):
    ids = np.random.default_rng(3).integers(0, model.vocab_size, 200)
    found, expected = (
        Sequence(each, 200, KV_FORMATS[name]).logits(ids) for each in (model, reference)
    )
    near(found, expected)
