"""Few words from the host to the device without a copy: the driver takes them with a launch.

Between two kernels of a stream that is faster than the copy engine, and than kernels that read host
memory, and the host may use its memory again at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import INT, POINTER, WORDS, Argument, Geometry

WORD_BYTES = 4
PART = ctypes.sizeof(WORDS) // WORD_BYTES
"""Words of a launch."""

KERNEL = Kernel("cuda/store_words.cu", f"ninfer::store_words_kernel<{PART}>")
GEOMETRY = Geometry(1, 256, overlap=True)


def launches(host: np.ndarray, address: int) -> Iterator[list[Argument]]:
    """Arguments of the launches that bring words of the host to an address of the device.

    Args:
        host: Contiguous; its bytes are a multiple of `WORD_BYTES`.
        address: Where its first byte goes.
    """
    data = host.tobytes()
    for begin in range(0, len(data), PART * WORD_BYTES):
        part = data[begin : begin + PART * WORD_BYTES]
        yield [(part, WORDS), (address + begin, POINTER), (len(part) // WORD_BYTES, INT)]
