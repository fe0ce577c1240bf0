from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer_format.errors import CheckpointError, UsageError
from ninfer_quant.calibration.corpus_rows import read_corpus
from ninfer_quant.calibration.model import CalibratedModel


def test_text_is_cut_into_rows(model: CalibratedModel, tmp_path: Path):
    path = tmp_path / "c.txt"
    path.write_text("Six black cats sat on the wall. " * 30, encoding="utf-8")
    ids = model.frontend.tokenizer.encode(path.read_text(encoding="utf-8"))
    corpus = read_corpus(path, model.frontend, rows=100, cols=64)
    assert corpus.name == "c.txt"
    assert np.concatenate(corpus.rows).tolist() == ids
    assert [len(row) for row in corpus.rows] == [64] * (len(ids) // 64) + [len(ids) % 64]
    assert corpus.num_tokens == len(ids)


def test_of_many_rows_evenly_spaced_ones_are_taken(model: CalibratedModel, tmp_path: Path):
    path = tmp_path / "c.txt"
    path.write_text("Count to a hundred and back again. " * 60, encoding="utf-8")
    every = read_corpus(path, model.frontend, rows=1000, cols=16).rows
    some = read_corpus(path, model.frontend, rows=4, cols=16).rows
    n = len(every)
    for row, index in zip(some, (0, n // 4, 2 * n // 4, 3 * n // 4), strict=True):
        np.testing.assert_array_equal(row, every[index])


def test_texts_and_chats_are_joined_by_an_end_token(model: CalibratedModel, tmp_path: Path):
    path = tmp_path / "c.jsonl"
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    lines = [{"text": "one"}, {"messages": chat}]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    (row,) = read_corpus(path, model.frontend, rows=9, cols=1000).rows
    first = model.frontend.tokenizer.encode("one")
    assert row[: len(first)].tolist() == first
    assert row[len(first)] == model.frontend.stop_token_ids[0]
    rest = row[len(first) + 1 :].tolist()
    assert model.frontend.tokenizer.token_id("<|im_start|>") == rest[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", b'{"text": "a"}\n{"words": 1}\n', "line 2: expected an object with text"),
        ("c.jsonl", b'{"text": "a"}\n{"messages": []}\n', "line 2: "),
        ("c.jsonl", b"[1,", "line 1: "),
        ("c.jsonl", b"[" * 100_000, "line 1: the JSON is nested too deeply"),
        ("c.txt", b"", "holds no text"),
        ("c.txt", b"\xff\xfe", "is not UTF-8"),
        ("c.pdf", b"a", r"a corpus is a \.txt, \.jsonl or \.safetensors file"),
    ],
)
def test_a_corpus_that_is_none_is_refused(
    model: CalibratedModel, tmp_path: Path, name: str, content: bytes, message: str
):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_corpus(path, model.frontend, rows=2, cols=8)


def test_packed_rows_count_up_to_their_length(model, tmp_path: Path, write_safetensors):
    path = tmp_path / "c.safetensors"
    ids = np.arange(24, dtype=np.int64).reshape(3, 8)
    write_safetensors(path, {"input_ids": ids, "lengths": np.array([8, 3, 5], np.int64)})
    corpus = read_corpus(path, model.frontend, rows=9, cols=6)
    expected = [list(range(6)), [8, 9, 10], list(range(16, 21))]
    assert [row.tolist() for row in corpus.rows] == expected


@pytest.mark.parametrize("lengths", [[8, 9], [0, 8], [8]])
def test_wrong_lengths_are_refused(model, tmp_path: Path, write_safetensors, lengths: list[int]):
    path = tmp_path / "c.safetensors"
    ids = np.zeros((2, 8), np.int64)
    write_safetensors(path, {"input_ids": ids, "lengths": np.array(lengths, np.int64)})
    with pytest.raises(CheckpointError, match="lengths"):
        read_corpus(path, model.frontend, rows=9, cols=6)


def test_ids_of_another_tokenizer_are_refused(model, tmp_path: Path, write_safetensors):
    path = tmp_path / "c.safetensors"
    ids = np.full((2, 8), 10**6, np.int64)
    write_safetensors(path, {"input_ids": ids, "lengths": np.array([2, 8], np.int64)})
    with pytest.raises(CheckpointError, match=r"row 0 has ids outside 0\.\."):
        read_corpus(path, model.frontend, rows=9, cols=6)


def test_the_builtin_corpus_is_varied_and_always_the_same(model: CalibratedModel):
    first, second = (read_corpus(None, model.frontend, rows=250, cols=256) for _ in range(2))
    assert first.identity == second.identity
    random_rows = sum(len(np.unique(row)) > 0.8 * len(row) for row in first.rows)
    assert random_rows / len(first.rows) == pytest.approx(0.1, abs=0.03)
    assert first.num_tokens > 8000
    few = read_corpus(None, model.frontend, rows=20, cols=64)
    assert len(few.rows) == 20
    assert few.identity != first.identity
