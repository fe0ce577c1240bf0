"""Letting a model write its own calibration text: passages of a corpus, and how it goes on.

What a model reads when it is used is for a good part what it has written itself. Rows of such text are
kept as the very tokens that were sampled, since a tokenizer may cut their text in another way.

Beside the file to be there is a folder ``FILE.work`` until it is finished, with every row that was
sampled; a run does not sample what it finds there. Each row has a seed of its own, so that the result
is the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer_format.commandline import new_output, refuse_existing
from ninfer_format.errors import UsageError
from ninfer_quant.calibration.corpus_rows import CorpusRows
from ninfer_quant.calibration.tensor_file import write_tensors
from ninfer_quant.pipeline.staging import disk_full_as_error
from ninfer_quant.work_folder import locked_work_folder
from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.request import Message, PreparedPrompt, PromptInput, RequestOptions
from ninfer_runtime.sampling.params import SamplingOverrides
from ninfer_runtime.text.frontend import Frontend

FILE_FORMAT = "ninfer-sampled-rows/1"
"""Value of ``format`` in the metadata."""
_INSTRUCTION = "Continue this passage:\n\n"
_TEMPERATURE, _TOP_P = 0.8, 0.95
_SEED = 1701
"""Of the first row; each further row has the next."""


@dataclass(frozen=True, slots=True)
class SampledRow:
    """A row of a sampled corpus.

    Attributes:
        token_ids: What the model was given and what it wrote, int64 ``[T]``.
        prompt_tokens: How many of them it was given.
    """

    token_ids: np.ndarray
    prompt_tokens: int


def passage_tokens(cols: int) -> int:
    """Length of the passages for rows of `cols` tokens: two thirds are read, a third is written."""
    return max(1, cols * 2 // 3)


def sample_rows(
    engine: Engine,
    frontend: Frontend,
    passages: CorpusRows,
    output: Path,
    *,
    identity: str,
    force: bool,
    advance: Callable[[int, str], None],
) -> dict[str, str]:
    """Let a model go on with passages, and write all rows as a corpus.

    The file is one that `read_corpus` takes: ``input_ids`` int64 ``[rows, tokens]`` and ``lengths``
    int64 ``[rows]``; ``prompt_lengths`` tells what was given. After a failure or an interruption the
    work folder remains, and nothing of the file.

    Args:
        engine: The model; its longest sequence is the longest row.
        frontend: Its text side.
        passages: What it goes on with.
        output: The file to be.
        identity: Tells the model from others.
        force: Replace an existing file.
        advance: Counts rows.

    Returns:
        The metadata of the file.

    Raises:
        UsageError: The file exists, the work folder is of something else, or a row has no room.
        DiskSpaceError: The disk is full.
    """
    refuse_existing(output, force=force)
    prompts = [_prompt(engine, frontend, passage) for passage in passages.rows]
    folder = output.with_name(f"{output.name}.work")
    settings = {
        "model": engine.model_info.name,
        "model_identity": identity,
        "corpus": passages.name,
        "corpus_sha256": passages.identity,
        "cols": str(engine.max_context),
    }
    with disk_full_as_error(output), locked_work_folder(folder, settings, "calibration"):
        rows = []
        for number, prompt in enumerate(prompts):
            path = folder / f"row-{number:05d}.npz"
            if not path.exists():
                _save(path, _sample(engine, prompt, _SEED + number))
            rows.append(_load(path))
            advance(1, f"row {number}")
        metadata = {key: value for key, value in settings.items() if key != "model_identity"}
        sampled = sum(len(row.token_ids) - row.prompt_tokens for row in rows)
        metadata |= {"rows": str(len(rows)), "sampled_tokens": str(sampled)}
        _write(output, rows, metadata, force=force)
        shutil.rmtree(folder)
    return metadata


def _prompt(engine: Engine, frontend: Frontend, passage: np.ndarray) -> PreparedPrompt:
    """What the model is told; it leaves room for a token of an answer."""
    tokenizer = frontend.tokenizer
    text = b"".join(map(tokenizer.token_bytes, passage.tolist())).decode("utf-8", "replace")
    prompt = engine.prepare(PromptInput(messages=(Message("user", _INSTRUCTION + text),)))
    if len(prompt.token_ids) >= engine.max_context:
        raise UsageError(
            f"a row has {engine.max_context} tokens, and a prompt alone {len(prompt.token_ids)}",
            hint="give more --cols",
        )
    return prompt


def _sample(engine: Engine, prompt: PreparedPrompt, seed: int) -> SampledRow:
    options = RequestOptions(
        max_output_tokens=engine.max_context - len(prompt.token_ids),
        sampling=SamplingOverrides(temperature=_TEMPERATURE, top_p=_TOP_P),
        seed=seed,
    )
    result = engine.submit(prompt, options).wait()
    ids = np.array([*prompt.token_ids, *result.token_ids], np.int64)
    return SampledRow(ids, len(prompt.token_ids))


def _save(path: Path, row: SampledRow) -> None:
    with new_output(path, force=True) as file:
        np.savez(file, token_ids=row.token_ids, prompt_tokens=np.array(row.prompt_tokens))


def _load(path: Path) -> SampledRow:
    with np.load(path, allow_pickle=False) as arrays:
        return SampledRow(arrays["token_ids"], int(arrays["prompt_tokens"]))


def _write(path: Path, rows: list[SampledRow], metadata: dict[str, str], *, force: bool) -> None:
    lengths = np.array([len(row.token_ids) for row in rows])
    ids = np.zeros((len(rows), lengths.max()), np.int64)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row.token_ids)] = row.token_ids
    prompt_lengths = np.array([row.prompt_tokens for row in rows])
    tensors = {"input_ids": ids, "lengths": lengths, "prompt_lengths": prompt_lengths}
    shapes = {name: array.shape for name, array in tensors.items()}
    with new_output(path, force=force) as file:
        write_tensors(file, "I64", shapes, tensors.__getitem__, {"format": FILE_FORMAT, **metadata})
