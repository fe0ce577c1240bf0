"""The tiny model against logits and tokens that a public implementation computed in float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.models.sequences import Sequence, logits_of

from ninfer_runtime.models.qwen3_5.model import TextModel

LOGIT_TOLERANCE = 2e-3
WHOLE_ROWS = ("01", "06", "10", "15", "18", "22", "26", "30")

CHATS = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "data/tiny-model/goldens/chat").glob("*.json")
)


def read_golden(path: Path) -> dict:
    golden: dict = json.loads(path.read_text())
    return golden


def step_logits(model: TextModel, golden: dict) -> np.ndarray:
    """Logits of every output step, the reference's own tokens fed in one by one."""
    prompt, output = golden["prompt_ids"], golden["output_ids"]
    sequence = Sequence(model, len(prompt) + len(output))
    rows = [logits_of(model, sequence.forward(prompt)[-1:])[0]]
    rows.extend(sequence.logits([token])[0] for token in output[:-1])
    return np.array(rows)


def test_all_chat_goldens_are_there():
    assert len(CHATS) == 30


@pytest.mark.parametrize("name", CHATS)
def test_chat_gives_the_same_tokens_and_logits(tiny_model, goldens, name):
    golden = read_golden(goldens / "chat" / f"{name}.json")
    logits = step_logits(tiny_model, golden)
    assert logits.argmax(axis=1).tolist() == golden["output_ids"]
    top5 = np.load(goldens / "chat" / "top5.npz")
    best = np.take_along_axis(logits, top5[f"{name}_ids"], axis=1)
    np.testing.assert_allclose(best, top5[f"{name}_logits"], rtol=0, atol=LOGIT_TOLERANCE)
    rows = np.load(goldens / "chat" / "logits.npz")
    assert (name in rows) == (name[:2] in WHOLE_ROWS)
    if name in rows:
        found = logits[golden["logits_steps"]]
        np.testing.assert_allclose(found, rows[name], rtol=0, atol=LOGIT_TOLERANCE)


@pytest.mark.parametrize("chunk", [2981, 1024, 100])
def test_long_prompt_in_chunks(tiny_model, goldens, chunk):
    golden = read_golden(goldens / "long" / "long.json")
    expected = np.load(goldens / "long" / "long.npz")
    prompt, output = golden["prompt_ids"], golden["output_ids"]
    sequence = Sequence(tiny_model, len(prompt) + len(output))
    early = {}
    for begin in range(0, len(prompt), chunk):
        hidden = sequence.forward(prompt[begin : begin + chunk])
        for position in golden["early_positions"]:
            if begin <= position < begin + chunk:
                row = hidden[position - begin : position - begin + 1]
                early[position] = logits_of(tiny_model, row)[0]
    last = logits_of(tiny_model, hidden[-1:])[0]
    steps = [last] + [sequence.logits([token])[0] for token in output[:-1]]
    found_early = np.array([early[position] for position in golden["early_positions"]])
    np.testing.assert_allclose(found_early, expected["early_logits"], rtol=0, atol=LOGIT_TOLERANCE)
    np.testing.assert_allclose(last, expected["last_logits"], rtol=0, atol=LOGIT_TOLERANCE)
    assert np.argmax(steps, axis=1).tolist() == output
    best = np.take_along_axis(np.array(steps), expected["top5_ids"], axis=1)
    np.testing.assert_allclose(best, expected["top5_logits"], rtol=0, atol=LOGIT_TOLERANCE)
