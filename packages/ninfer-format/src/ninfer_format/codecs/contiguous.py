"""`contiguous_le_v1`: one little-endian word after the other in C order, without padding."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.base import Codec
from ninfer_format.codecs.checks import check_array
from ninfer_format.codecs.geometry import ByteArray, PlaneSize, word_bytes
from ninfer_format.dtypes import DirectFormat
from ninfer_format.layouts import CONTIGUOUS_LE_V1


class ContiguousCodec(Codec[NDArray[Any]]):
    """A direct format in `contiguous_le_v1`; words are integers in the logical shape.

    The only plane is ``words``. Decoding returns views where a format needs no arithmetic.
    """

    numeric: ClassVar[DirectFormat]
    storage = CONTIGUOUS_LE_V1

    @abstractmethod
    def values(self, words: NDArray[Any]) -> NDArray[Any]:
        """What `words` mean, in the same shape: float32 or int32."""

    def _plane_sizes(self) -> dict[str, PlaneSize]:
        return {"words": PlaneSize(prod(self.shape[1:]) * self.numeric.word.itemsize)}

    def _count_rows(self, words: NDArray[Any]) -> int:
        return words.shape[0] if words.ndim else 1

    def _check_words(self, words: NDArray[Any], first_row: int) -> None:
        check_array(words, self.numeric.word.type, self.shape, f"{self.format} words")

    def _pack(self, words: NDArray[Any]) -> dict[str, ByteArray]:
        return {"words": word_bytes(words, self.numeric.word.str)}

    def _unpack(self, payload: ByteArray) -> NDArray[Any]:
        return payload.view(self.numeric.word).reshape(self.shape)

    def _decode_range(self, payload: ByteArray, begin: int, end: int) -> NDArray[Any]:
        words = payload.view(self.numeric.word)[begin:end]
        # An object may start at any byte of a file whose segments are odd.
        return self.values(np.require(words, requirements="A"))

    def _decode_block(
        self, payload: ByteArray, rows: tuple[int, int], columns: tuple[int, int]
    ) -> NDArray[Any]:
        words = self._unpack(payload)[slice(*rows), slice(*columns)]
        return self.values(np.require(words, requirements="A"))
