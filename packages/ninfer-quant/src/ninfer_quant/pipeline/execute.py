"""Reading, encoding and writing every object, chunk by chunk, on worker threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from ninfer_format import ArtifactWriter, RowWriter, cast_direct, codec_for
from ninfer_format.workers import Advance
from ninfer_quant.array_module import own_stream
from ninfer_quant.methods.request import Target
from ninfer_quant.pipeline.prepare import AuxiliaryObject, Preparation, WeightObject
from ninfer_quant.pipeline.statistics import ErrorSums
from ninfer_quant.sources.words import MatrixWords, word_values

ParameterErrors = dict[tuple[str, str], ErrorSums]
"""Errors by object id and name of the parameter, which may lie in several objects."""


def write_tasks(
    preparation: Preparation, writer: ArtifactWriter
) -> list[Callable[[Advance], ParameterErrors]]:
    """One task per object; each returns the errors of the parameters in it.

    The largest come first, so that no worker is left alone with one at the end. The order does not
    change a byte, because every byte has its place.
    """
    weights = sorted(preparation.weights, key=lambda weight: -prod(weight.target.shape))
    return [
        *(partial(_write_weight, writer, weight) for weight in weights),
        *(partial(_write_auxiliary, writer, item) for item in preparation.auxiliaries),
    ]


def _write_weight(
    writer: ArtifactWriter, weight: WeightObject, advance: Advance
) -> ParameterErrors:
    output = _EncodingOutput(writer, weight, advance)
    with own_stream(weight.request.device):
        weight.job.produce(output)
    weight.request.release()
    return output.errors


def _write_auxiliary(
    writer: ArtifactWriter, item: AuxiliaryObject, advance: Advance
) -> ParameterErrors:
    target = item.target
    words = cast_direct(item.value.values, target.format)
    data = codec_for(target.format, target.layout, target.shape).encode(words)
    writer.write(target.id, 0, data)
    advance(data.size, target.id)
    return {}


class _EncodingOutput:
    """Packs words, writes them and measures their error; implements `ObjectOutput`."""

    def __init__(self, writer: ArtifactWriter, weight: WeightObject, advance: Advance) -> None:
        self.errors: ParameterErrors = {}
        self._target: Target = weight.target
        self._request = weight.request
        self._rows = RowWriter(writer, weight.target.id)
        self._advance = advance

    def write_values(self, begin: int, words: np.ndarray) -> None:
        """Write words of a direct format, from flat element `begin` of the object."""
        flat = words.reshape(-1)
        self._count(self._rows.write_elements(flat, begin))
        codec = codec_for(self._target.format, self._target.layout, flat.shape)
        # What a reader of the artifact will decode, of words as an object of their own.
        self._measure(begin, codec.decode(codec.encode(flat)))

    def write_rows(self, first_row: int, words: MatrixWords) -> None:
        """Write rows of a format that is not direct; see `ObjectOutput`."""
        self._count(self._rows.write_rows(words, first_row))
        stored = word_values(self._target.format, words)
        self._measure(first_row * stored.shape[1], stored)

    def keep_alive(self) -> None:
        """Say that work goes on; see `ObjectOutput`."""
        self._count(0)

    def _count(self, num_bytes: int) -> None:
        self._advance(num_bytes, self._request.inputs[0].parameter)

    def _measure(self, begin: int, stored: np.ndarray) -> None:
        stored = stored.reshape(-1)
        values = self._request.values(begin, begin + stored.size)
        position = 0
        for part, first, last in self._request.spans(begin, begin + stored.size):
            length = last - first
            piece = slice(position, position + length)
            sums = self.errors.setdefault((self._target.id, part.parameter), ErrorSums())
            sums.add(values[piece], stored[piece])
            position += length
