"""int32: two's complement integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.contiguous import ContiguousCodec
from ninfer_format.dtypes import INT32


class Int32Codec(ContiguousCodec):
    """int32 words in `contiguous_le_v1`."""

    numeric = INT32

    def values(self, words: NDArray[Any]) -> NDArray[np.int32]:
        """The words themselves."""
        return words
