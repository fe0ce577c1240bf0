"""The predictions of a model on a text, kept in a file that other models are compared with.

It is a Safetensors file. For P scored positions and V tokens it has

- ``log_probabilities``, F16 ``[P, V]``: natural logarithms of probabilities, and
- ``top_tokens``, I32 ``[P]``: the likeliest token, which rounding to 16 bits may hide.

The rounding changes a divergence by less than 1e-6 as long as a reader normalises the rows again.
The metadata say which text, tokens and windows the positions are from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError

FILE_FORMAT = "ninfer-logits/1"
"""Value of ``format`` in the metadata."""
_LOG_PROBABILITIES, _TOP_TOKENS = "log_probabilities", "top_tokens"
_LOWEST = float(np.finfo(np.float16).min)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """What the positions of a file are positions of; two runs with equal ones are comparable.

    Attributes:
        text_sha256: Hash of the bytes of the text.
        tokens_sha256: Hash of the token ids of the windows, as little-endian int32.
        vocabulary: Number of tokens that probabilities are over, V.
        context: Tokens of a window.
        windows: Number of windows.
        positions: Number of scored positions, P.
    """

    text_sha256: str
    tokens_sha256: str
    vocabulary: int
    context: int
    windows: int
    positions: int


def describe_text(
    text: bytes, token_ids: Sequence[int], *, vocabulary: int, context: int, windows: int
) -> ScoredText:
    """Say what is scored when the second halves of whole windows are.

    Args:
        text: The text.
        token_ids: Its tokens.
        vocabulary: Number of tokens that probabilities are over.
        context: Tokens of a window.
        windows: Number of windows.
    """
    ids = np.asarray(token_ids[: context * windows], "<i4")
    return ScoredText(
        text_sha256=sha256(text).hexdigest(),
        tokens_sha256=sha256(ids.tobytes()).hexdigest(),
        vocabulary=vocabulary,
        context=context,
        windows=windows,
        positions=windows * (context - context // 2),
    )


class LogitsWriter:
    """Writes a file position by position.

    Args:
        file: Where to write, from its present position on.
        scored: What will be added.
        model: Name of the model.
    """

    def __init__(self, file: BinaryIO, scored: ScoredText, model: str) -> None:
        self._file = file
        self._top_tokens: list[np.ndarray] = []
        shapes = {
            _LOG_PROBABILITIES: ("F16", [scored.positions, scored.vocabulary], 2),
            _TOP_TOKENS: ("I32", [scored.positions], 4),
        }
        metadata = {name: str(value) for name, value in asdict(scored).items()}
        header: dict[str, object] = {
            "__metadata__": {"format": FILE_FORMAT, "model": model, **metadata}
        }
        end = 0
        for name, (dtype, shape, width) in shapes.items():
            begin, end = end, end + int(np.prod(shape)) * width
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header, ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little") + text)

    def add(self, log_probabilities: np.ndarray) -> None:
        """Write the next positions, float ``[n, V]``."""
        words = np.maximum(log_probabilities, _LOWEST).astype("<f2")
        self._file.write(words.data)
        self._top_tokens.append(log_probabilities.argmax(axis=1).astype("<i4"))

    def finish(self) -> None:
        """Write what stands behind the last position."""
        self._file.write(np.concatenate(self._top_tokens).data)


class LogitsReference:
    """An open file; rows are read when they are asked for.

    Args:
        path: The file.

    Attributes:
        scored: What it was made from.
        model: Name of the model.

    Raises:
        CheckpointError: It is no such file, or it is damaged.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tensors = SafetensorsCheckpoint(path)
        metadata = self._tensors.metadata
        if metadata.get("format") != FILE_FORMAT:
            raise CheckpointError(
                f"holds no logits: its metadata lack format {FILE_FORMAT}",
                path=path,
                hint="make one with ninfer-perplexity --logits-out",
            )
        self.model = metadata.get("model", "")
        try:
            self.scored = ScoredText(
                text_sha256=metadata["text_sha256"],
                tokens_sha256=metadata["tokens_sha256"],
                vocabulary=int(metadata["vocabulary"]),
                context=int(metadata["context"]),
                windows=int(metadata["windows"]),
                positions=int(metadata["positions"]),
            )
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"damaged metadata: {error}", path=path) from error
        self._check(_LOG_PROBABILITIES, "F16", (self.scored.positions, self.scored.vocabulary))
        self._check(_TOP_TOKENS, "I32", (self.scored.positions,))

    def require(self, scored: ScoredText) -> None:
        """Refuse to be compared with predictions of something else.

        Raises:
            CheckpointError: Text, tokenizer or windows differ; which of them is said.
        """
        own = self.scored
        problem = None
        if own.text_sha256 != scored.text_sha256:
            problem = "another text"
        elif own.context != scored.context:
            problem = f"windows of {own.context} tokens, not {scored.context}"
        elif own.windows != scored.windows:
            problem = f"{own.windows} windows, not {scored.windows}"
        elif (own.tokens_sha256, own.vocabulary) != (scored.tokens_sha256, scored.vocabulary):
            problem = "another tokenizer"
        if problem is not None:
            raise CheckpointError(
                f"the reference is of {problem}",
                path=self._path,
                hint="give the text and the options that it was made with",
            )

    def read(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Read positions ``[begin, end)``.

        Returns:
            Logarithms of probabilities, float16 ``[n, V]`` and not quite normalised, and the
            likeliest tokens, int32 ``[n]``.

        Raises:
            CheckpointError: A value is not finite.
        """
        V = self.scored.vocabulary
        values = self._tensors.read(_LOG_PROBABILITIES, begin * V, end * V).reshape(-1, V)
        if not np.isfinite(values).all():
            raise CheckpointError("a log-probability is not finite", path=self._path)
        return values, self._tensors.read(_TOP_TOKENS, begin, end)

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        info = self._tensors.info(name)
        if (info.dtype, info.shape) != (dtype, shape):
            raise CheckpointError(
                f"{name} is {info.dtype} {list(info.shape)}, expected {dtype} {list(shape)}",
                path=self._path,
            )
