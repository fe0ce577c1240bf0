"""The text that a model reads while it is calibrated, as rows of tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError, NInferError, UsageError
from ninfer_runtime.engine.request import Message, PromptInput
from ninfer_runtime.text.frontend import Frontend

BUILTIN = "built-in"
"""Name of the corpus that comes with this package."""
_BUILTIN_FILES = ("prose.txt", "technical.txt", "languages.txt", "code.txt", "chats.jsonl")
_RANDOM_SHARE = 10
"""One of so many rows of the built-in corpus are random tokens, so that no token is never seen."""
_SEED = 0


@dataclass(frozen=True, eq=False, slots=True)
class CorpusRows:
    """Rows that a model reads, each from an empty state.

    Attributes:
        name: What the corpus is called: the name of its file.
        rows: Token ids, int32 ``[T]`` each.
    """

    name: str
    rows: tuple[np.ndarray, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(row) for row in self.rows)

    @property
    def identity(self) -> str:
        """SHA-256 of the rows."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(len(row).to_bytes(8, "little") + row.astype("<i4").tobytes())
        return digest.hexdigest()


def read_corpus(
    path: Path | None, frontend: Frontend, *, rows: int, cols: int, has_random_rows: bool = True
) -> CorpusRows:
    """Make rows of at most `cols` tokens from a corpus.

    Texts are put one after the other with an end token between them, and cut into rows; of more
    rows than are wanted, evenly spaced ones are taken.

    Args:
        path: A ``.txt``, ``.jsonl`` (objects with ``text``, or with ``messages`` of ``role`` and
            ``content``) or ``.safetensors`` file (``input_ids`` int64 ``[rows, tokens]`` and
            ``lengths`` int64 ``[rows]``); None for the built-in corpus.
        frontend: The text side of the model.
        rows: Most rows.
        cols: Most tokens of a row.
        has_random_rows: Whether a part of the built-in corpus are rows of random tokens.

    Raises:
        UsageError: The file is none of these, or holds no token.
        CheckpointError: A Safetensors file is damaged or does not fit the model.
    """
    if path is None:
        random_rows = rows // _RANDOM_SHARE if has_random_rows else 0
        texts = _cut(_join(_builtin_documents(frontend), frontend), rows - random_rows, cols)
        # As many as belong to the text that there is.
        count = min(random_rows, -(-len(texts) // (_RANDOM_SHARE - 1)))
        return CorpusRows(BUILTIN, (*texts, *_random_rows(frontend, count, cols)))
    if path.suffix == ".safetensors":
        found = _packed_rows(path, frontend, cols)
        return CorpusRows(path.name, tuple(_spread(found, rows)))
    found = _cut(_join(_documents(path, frontend), frontend), rows, cols)
    if not found:
        raise UsageError("the corpus holds no text", path=path)
    return CorpusRows(path.name, tuple(found))


def _builtin_documents(frontend: Frontend) -> Iterator[Sequence[int]]:
    folder = files("ninfer_quant.calibration") / "corpus"
    for name in _BUILTIN_FILES:
        text = (folder / name).read_text(encoding="utf-8")
        if name.endswith(".jsonl"):
            yield from _json_documents(text, frontend, Path(name))
        else:
            yield frontend.tokenizer.encode(text)


def _documents(path: Path, frontend: Frontend) -> Iterator[Sequence[int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8: {error}", path=path) from error
    if path.suffix == ".jsonl":
        yield from _json_documents(text, frontend, path)
    elif path.suffix == ".txt":
        yield frontend.tokenizer.encode(text)
    else:
        raise UsageError(
            "a corpus is a .txt, .jsonl or .safetensors file", path=path, hint="rename the file"
        )


def _json_documents(text: str, frontend: Frontend, path: Path) -> Iterator[Sequence[int]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield _json_document(json.loads(line), frontend)
        except RecursionError as error:
            raise UsageError(f"line {number}: the JSON is nested too deeply", path=path) from error
        except (ValueError, NInferError) as error:
            raise UsageError(f"line {number}: {error}", path=path) from error


def _json_document(document: Any, frontend: Frontend) -> Sequence[int]:
    if isinstance(document, dict) and isinstance(document.get("text"), str):
        return frontend.tokenizer.encode(document["text"])
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise ValueError("expected an object with text, or messages of role and content")
    chat = tuple(Message(message["role"], message["content"]) for message in messages)
    prompt = PromptInput(messages=chat, add_generation_prompt=False)
    return frontend.prepare(prompt).token_ids


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )


def _join(documents: Iterator[Sequence[int]], frontend: Frontend) -> np.ndarray:
    ids: list[int] = []
    for document in documents:
        if ids:
            ids.append(frontend.stop_token_ids[0])
        ids.extend(document)
    return np.array(ids, np.int32)


def _cut(ids: np.ndarray, rows: int, cols: int) -> list[np.ndarray]:
    return _spread([ids[begin : begin + cols] for begin in range(0, len(ids), cols)], rows)


def _spread(found: Sequence[np.ndarray], rows: int) -> list[np.ndarray]:
    """Evenly spaced ones of the rows, all if there are not too many."""
    count = min(rows, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def _random_rows(frontend: Frontend, count: int, cols: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(_SEED)
    for _ in range(count):
        yield generator.integers(0, frontend.tokenizer.public_tokens, cols, np.int32)


def _packed_rows(path: Path, frontend: Frontend, cols: int) -> list[np.ndarray]:
    tensors = SafetensorsCheckpoint(path)
    shape = tensors.info("input_ids").shape
    lengths = tensors.read("lengths")
    if len(shape) != 2 or lengths.shape != shape[:1]:
        raise CheckpointError("expected input_ids [rows, tokens] and lengths [rows]", path=path)
    ids = tensors.read("input_ids").reshape(shape)
    if ids.dtype.kind != "i" or lengths.dtype.kind != "i" or not len(ids):
        raise CheckpointError(
            "input_ids and lengths must be integers, of one row or more", path=path
        )
    if lengths.min() < 1 or lengths.max() > shape[1]:
        raise CheckpointError(f"lengths must be from 1 to {shape[1]}", path=path)
    found = [row[: min(length, cols)] for row, length in zip(ids, lengths, strict=True)]
    public = frontend.tokenizer.public_tokens
    for number, row in enumerate(found):
        if row.min() < 0 or row.max() >= public:
            raise CheckpointError(f"row {number} has ids outside 0..{public - 1}", path=path)
    return [row.astype(np.int32) for row in found]
