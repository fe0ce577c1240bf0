import json

import pytest

from ninfer_format.errors import UsageError
from ninfer_quant.quality.tasks import read_tasks, score_tasks
from ninfer_runtime.engine.loading import load
from ninfer_runtime.engine.options import EngineOptions


@pytest.fixture(scope="module")
def tasks_file(tiny_text):
    return tiny_text.with_name("tasks-eval.jsonl")


def write(path, *documents):
    path.write_text("\n".join(json.dumps(document) for document in documents), encoding="utf-8")
    return path


def ask(text, accept, **more):
    return {"messages": [{"role": "user", "content": text}], "accept": accept, **more}


def test_chats_with_pictures_are_left_out(tasks_file):
    tasks = read_tasks(tasks_file)
    assert len(tasks) == 350
    assert {task.kind for task in tasks} == {
        *("arithmetic", "fact", "lists", "json", "memory", "call", "result")
    }
    assert len(read_tasks(tasks_file, 7)) == 7
    assert len(read_tasks(tasks_file, 1000)) == 350
    assert {task.kind for task in read_tasks(tasks_file, 14)} == {task.kind for task in tasks}


def test_answers_are_counted_as_the_reference_counts_them(tasks_file, bf16_model):
    loaded = load(EngineOptions(model=bf16_model, backend="cpu"))
    tasks = [task for task in read_tasks(tasks_file) if task.kind in ("fact", "json", "call")][::12]
    counted: list[int] = []
    score = score_tasks(loaded.program, loaded.frontend, tasks, counted.append)
    # The reference answers every one of these kinds.
    assert score.correct == score.answered == len(tasks) == sum(counted) == 11
    assert {kind: pair[0] for kind, pair in score.by_kind.items()} == {
        "fact": 5,
        "json": 2,
        "call": 4,
    }


def test_only_an_accepted_answer_that_ends_is_right(tmp_path, bf16_model):
    loaded = load(EngineOptions(model=bf16_model, backend="cpu"))
    capital = "What is the capital of France?"
    tasks = read_tasks(
        write(
            tmp_path / "t.jsonl",
            ask(capital, ["The capital of France is Paris.", "Paris"], enable_thinking=False),
            ask(capital, ["The capital of France is Paris.", "Paris"], enable_thinking=True),
            ask(capital, ["The capital of France is London."], enable_thinking=False, kind="x"),
        )
    )
    score = score_tasks(loaded.program, loaded.frontend, tasks, lambda count: None)
    assert score.by_kind == {"": (2, 2), "x": (1, 0)}


def test_an_answer_that_does_not_end_is_wrong(tmp_path, bf16_model, monkeypatch):
    loaded = load(EngineOptions(model=bf16_model, backend="cpu"))
    letter = loaded.frontend.tokenizer.encode("a")[0]
    monkeypatch.setattr(loaded.program, "decode", lambda handle, token: letter)
    monkeypatch.setattr("ninfer_quant.quality.tasks.MOST_ANSWER_TOKENS", 5)
    path = write(tmp_path / "t.jsonl", ask("x", [n * "a" for n in range(9)], enable_thinking=False))
    score = score_tasks(loaded.program, loaded.frontend, read_tasks(path), lambda count: None)
    assert (score.answered, score.correct) == (1, 0)


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([[]], "line 1: expected an object"),
        ([ask("a", "b")], "line 1: expected an object"),
        ([ask("a", ["b"]), ask("a", [3])], "line 2: expected an object"),
        ([{"accept": []}], "line 1"),
        ([ask("a", ["b"], images=["x.png"])], "no chat without pictures"),
        ([], "no chat without pictures"),
    ],
)
def test_a_file_that_holds_no_tasks_is_refused(tmp_path, documents, expected):
    path = write(tmp_path / "t.jsonl", *documents)
    with pytest.raises(UsageError, match=expected):
        read_tasks(path)


def test_what_is_no_json_or_text_is_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("{")
    with pytest.raises(UsageError, match="line 1: not JSON"):
        read_tasks(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_tasks(path)
