"""Task accuracy: chats that a model answers greedily, right if the answer is an accepted one.

A tasks file is JSON lines of objects with ``messages``, ``accept`` (all right answers) and, if
wanted, ``tools``, ``enable_thinking`` and ``kind``. Chats with pictures, which cannot be answered
yet, are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninfer_format.errors import UsageError
from ninfer_runtime.sampling.params import GREEDY

if TYPE_CHECKING:
    from ninfer_runtime.engine.program import Program
    from ninfer_runtime.engine.request import PromptInput
    from ninfer_runtime.text.frontend import Frontend

MOST_ANSWER_TOKENS = 224
TASK_CONTEXT = 2048
"""Tokens of a chat and its answer at most."""

_END_OF_THOUGHT = "</think>"


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """One chat.

    Attributes:
        kind: What kind of task it is.
        prompt: The chat.
        accepted: Answers that are right, without thoughts.
    """

    kind: str
    prompt: PromptInput
    accepted: frozenset[str]


@dataclass(frozen=True, slots=True)
class TaskScore:
    """How many answers were right.

    Attributes:
        answered: Number of chats.
        correct: Number of right answers.
        by_kind: The same two numbers for every kind.
    """

    answered: int
    correct: int
    by_kind: dict[str, tuple[int, int]]


def read_tasks(path: Path, most: int | None = None) -> list[Task]:
    """Read the chats of a file without pictures.

    Args:
        path: The file.
        most: Most chats, evenly spaced; None for all.

    Raises:
        UsageError: A line is no task, or there is none that could be answered.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8: {error}", path=path) from error
    found = [
        task
        for number, line in enumerate(lines, 1)
        if line.strip() and (task := _task(line, f"{path}: line {number}")) is not None
    ]
    if not found:
        raise UsageError("has no chat without pictures", path=path)
    count = len(found) if most is None else min(most, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def _task(line: str, where: str) -> Task | None:
    from ninfer_runtime.cli.messages import parse_messages
    from ninfer_runtime.engine.request import PromptInput

    try:
        document = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}") from error
    accepted = document.get("accept") if isinstance(document, dict) else None
    if not isinstance(accepted, list) or not all(isinstance(item, str) for item in accepted):
        raise UsageError(f"{where}: expected an object with messages and a list accept of strings")
    if document.get("images"):
        return None
    chat: dict[str, Any] = {"messages": document.get("messages")}
    if document.get("tools") is not None:
        chat["tools"] = document["tools"]
    messages, tools = parse_messages(json.dumps(chat).encode(), where)
    prompt = PromptInput(
        messages=messages, tools=tools, enable_thinking=document.get("enable_thinking")
    )
    return Task(str(document.get("kind", "")), prompt, frozenset(accepted))


def score_tasks(
    program: Program,
    frontend: Frontend,
    tasks: Sequence[Task],
    advance: Callable[[int], None],
) -> TaskScore:
    """Answer chats greedily.

    Args:
        program: The model.
        frontend: Its text side.
        tasks: The chats.
        advance: Counts chats.
    """
    answered: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    for task in tasks:
        answered[task.kind] += 1
        correct[task.kind] += _answer(program, frontend, task.prompt) in task.accepted
        advance(1)
    return TaskScore(
        answered.total(),
        correct.total(),
        {kind: (count, correct[kind]) for kind, count in answered.items()},
    )


def _answer(program: Program, frontend: Frontend, prompt: PromptInput) -> str | None:
    """The answer after the thought, None if it does not end by itself."""
    token_ids = list(frontend.prepare(prompt).token_ids)
    tokenizer = frontend.tokenizer
    handle = program.begin(token_ids, len(token_ids) + MOST_ANSWER_TOKENS, GREEDY)
    try:
        token = None
        while token is None:
            token = program.advance_prefill(handle).token_id
        output: list[int] = []
        while len(output) < MOST_ANSWER_TOKENS:
            if token in frontend.stop_token_ids:
                text = b"".join(map(tokenizer.token_bytes, output)).decode("utf-8", "replace")
                return text.rpartition(_END_OF_THOUGHT)[2].strip()
            output.append(token)
            token = program.decode(handle, token)
        return None
    finally:
        program.finish(handle)
