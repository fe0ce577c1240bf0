"""fp32: IEEE binary32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.contiguous import ContiguousCodec
from ninfer_format.dtypes import FP32


class Fp32Codec(ContiguousCodec):
    """fp32 words in `contiguous_le_v1`."""

    numeric = FP32

    def values(self, words: NDArray[Any]) -> NDArray[np.float32]:
        """The same bits as float32; a view."""
        return words.view("<f4")
