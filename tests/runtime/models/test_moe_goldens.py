"""The tiny mixture of experts against logits that a public implementation computed in float32."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.models.conftest import CheckpointParameters, text_model
from tests.runtime.models.sequences import Sequence, run

from ninfer_format import SafetensorsCheckpoint
from ninfer_runtime.device import Tensor, get_device
from ninfer_runtime.layers.moe import MixtureOfExperts
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE
from ninfer_runtime.models.qwen3_5.model import TextModel

TOLERANCE = 5e-5
GOLDENS = np.load(Path(__file__).parents[2] / "data" / "tiny-moe" / "goldens.npz")
LENGTHS = (1, 7, 33, 64, 200)


def build(folder: Path) -> TextModel:
    checkpoint = SafetensorsCheckpoint(folder)
    configs = ARCHITECTURE.component_configs(checkpoint.config, ["text"])
    views = ARCHITECTURE.source_views(configs, checkpoint.names)
    source = CheckpointParameters(checkpoint, views)
    return text_model(configs["text"], source)


@pytest.fixture(scope="module")
def model(tiny_moe: Path) -> TextModel:
    return build(tiny_moe)


def test_the_checkpoint_is_the_one_of_the_goldens(tiny_moe: Path):
    """Otherwise make new goldens: see tools/tiny_moe_goldens.py."""
    values = (tiny_moe / "model.safetensors").read_bytes()
    assert hashlib.sha256(values).hexdigest() == str(GOLDENS["checkpoint_sha256"])


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_of_a_prompt(model: TextModel, length: int):
    logits, expected = run(model, GOLDENS[f"tokens_{length}"], [0, length]), golden(length)
    assert expected.std() > 0.4  # the comparison is not one of zeros
    np.testing.assert_allclose(logits[-len(expected) :], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("chunk", [1, 13, 64, 100])
def test_logits_of_a_prompt_in_chunks(model: TextModel, chunk: int):
    bounds = [*range(0, 200, chunk), 200]
    expected = golden(200)
    logits = run(model, GOLDENS["tokens_200"], bounds)[-len(expected) :]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)


def golden(length: int) -> np.ndarray:
    logits: np.ndarray = GOLDENS[f"logits_{length}"]
    assert logits.shape == (min(length, 64) if length != 200 else 32, 512)
    return logits


def test_greedy_continuation(model: TextModel):
    prompt, expected = GOLDENS["tokens_33"], GOLDENS["greedy_33"]
    sequence = Sequence(model, len(prompt) + len(expected))
    logits = sequence.logits(prompt)[-1]
    found = []
    for _ in range(len(expected)):
        found.append(int(logits.argmax()))
        logits = sequence.logits(found[-1:])[0]
    assert found == expected.tolist()


def test_sequences_in_turns_do_not_touch_each_other(model: TextModel):
    sequences = {length: Sequence(model, length) for length in (33, 64)}
    rows: dict[int, list[np.ndarray]] = {33: [], 64: []}
    for begin in range(0, 64, 11):
        for length, sequence in sequences.items():
            ids = GOLDENS[f"tokens_{length}"][begin : begin + 11]
            if len(ids):
                rows[length].append(sequence.logits(ids))
    for length, found in rows.items():
        np.testing.assert_allclose(np.concatenate(found), golden(length), rtol=0, atol=TOLERANCE)


def test_both_layouts_of_the_experts_are_one_model(model: TextModel, tiny_moe_per_expert: Path):
    other = build(tiny_moe_per_expert)
    ids = GOLDENS["tokens_33"]
    np.testing.assert_array_equal(run(other, ids, [0, 33]), run(model, ids, [0, 33]))


def test_an_expert_that_is_spoiled_shows(tiny_moe: Path):
    """The comparison would see a single wrong matrix of one expert."""
    model = build(tiny_moe)
    layer = model.blocks[2].feed_forward
    assert isinstance(layer, MixtureOfExperts)
    bank = layer.weights.down
    assert isinstance(bank, Tensor)
    bank.array[128 * 5 : 128 * 6] *= 1.02
    logits = run(model, GOLDENS["tokens_64"], [0, 64])
    assert np.abs(logits - golden(64)).max() > 5 * TOLERANCE


def test_layer_by_layer_is_the_same_model_and_shows_every_input(tiny_moe: Path):
    checkpoint = SafetensorsCheckpoint(tiny_moe)
    configs = ARCHITECTURE.component_configs(checkpoint.config, ["text"])
    views = ARCHITECTURE.source_views(configs, checkpoint.names)
    source = CheckpointParameters(checkpoint, views)
    layered = ARCHITECTURE.layered(configs, source, get_device("cpu"))
    seen: dict[str, list[tuple[int, ...]]] = {}

    def observe(name: str, rows: Tensor) -> None:
        seen.setdefault(name, []).append(rows.shape)

    (rows,) = layered.embed([GOLDENS["tokens_64"]])
    for index in range(layered.num_layers):
        rows = layered.load_layer(index, observe)(rows)
    layered.observe_head(rows, observe)
    wanted = {name for p in ARCHITECTURE.parameters(configs) for name in p.inputs}
    assert set(seen) == wanted
    for layer in range(4):
        products = [f"text/layers/{layer}/moe/experts/{expert}/product" for expert in range(8)]
        assert sum(shape[0] for name in products for shape in seen[name]) == 2 * 64
        assert seen[f"text/layers/{layer}/moe/shared/product"] == [(64, 128)]
        assert seen[f"text/layers/{layer}/ffn_input"] == [(64, 128)]
