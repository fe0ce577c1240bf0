"""bf16: the upper half of a binary32 word."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.contiguous import ContiguousCodec
from ninfer_format.dtypes import BF16


class Bf16Codec(ContiguousCodec):
    """bf16 words in `contiguous_le_v1`."""

    numeric = BF16

    def values(self, words: NDArray[Any]) -> NDArray[np.float32]:
        """Exact binary32 values; NaN payloads survive because only integers move."""
        wide = words.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
