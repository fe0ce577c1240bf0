"""Writing Safetensors files, one tensor in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import BinaryIO, Literal

import numpy as np

_TYPES = {"F32": "<f4", "I64": "<i8"}


def write_tensors(
    file: BinaryIO,
    dtype: Literal["F32", "I64"],
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], np.ndarray],
    metadata: Mapping[str, str],
) -> None:
    """Write tensors of one type in the order of `shapes`.

    Args:
        file: Where to.
        dtype: The type of all.
        shapes: Shapes by name.
        read: Gives the tensor of a name.
        metadata: What is said about the file.
    """
    stored = np.dtype(_TYPES[dtype])
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape) * stored.itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in shapes:
        file.write(np.ascontiguousarray(read(name), stored).data)
