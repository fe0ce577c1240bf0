"""Reading, encoding and writing every object, chunk by chunk, on worker threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from ninfer_format import ArtifactWriter, GroupedWords, cast_direct, codec_for
from ninfer_quant.methods.request import Target
from ninfer_quant.pipeline.prepare import AuxiliaryObject, Preparation, WeightObject
from ninfer_quant.pipeline.statistics import ErrorSums
from ninfer_quant.pipeline.workers import Advance

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
    output.write_padding()
    weight.job.produce(output)
    weight.request.release()
    return output.errors


def _write_auxiliary(
    writer: ArtifactWriter, item: AuxiliaryObject, advance: Advance
) -> ParameterErrors:
    target = item.target
    words = cast_direct(item.value.values, target.format)
    data = codec_for(target.format, target.layout).encode(words, target.shape)
    writer.write(target.id, 0, data)
    advance(data.size, target.id)
    return {}


class _EncodingOutput:
    """Packs words, writes them and measures their error; implements `ObjectOutput`."""

    def __init__(self, writer: ArtifactWriter, weight: WeightObject, advance: Advance) -> None:
        self.errors: ParameterErrors = {}
        self._writer = writer
        self._target: Target = weight.target
        self._request = weight.request
        self._codec = codec_for(weight.target.format, weight.target.layout)
        self._advance = advance

    def write_padding(self) -> None:
        """Fill the gaps between the planes of the object with zeros."""
        for offset, length in self._codec.padding(self._target.shape):
            self._write(offset, np.zeros(length, np.uint8))

    def write_values(self, begin: int, words: np.ndarray) -> None:
        """Write words of a direct format, from flat element `begin` of the object."""
        flat = words.reshape(-1)
        # Layouts of direct formats are one run of words, whatever the shape.
        pieces = self._codec.encode_rows(flat, (prod(self._target.shape),), begin)
        for offset, data in pieces:
            self._write(offset, data)
        self._measure(begin, self._codec.decode(self._codec.encode(flat, flat.shape), flat.shape))

    def write_codes(self, first_row: int, codes: np.ndarray, scales: np.ndarray) -> None:
        """Write rows of a grouped format; see `ObjectOutput`."""
        words = GroupedWords(codes, scales)
        for offset, data in self._codec.encode_rows(words, self._target.shape, first_row):
            self._write(offset, data)
        # The rows as an object of their own: what a reader of the artifact will decode.
        payload = self._codec.encode(words, codes.shape)
        self._measure(first_row * codes.shape[1], self._codec.decode(payload, codes.shape))

    def _write(self, offset: int, data: np.ndarray) -> None:
        self._writer.write(self._target.id, offset, data)
        self._advance(data.size, self._request.inputs[0].parameter)

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
