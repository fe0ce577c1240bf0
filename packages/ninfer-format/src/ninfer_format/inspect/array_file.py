"""Writing arrays to NumPy's files piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from ninfer_format.inspect.tensor_words import PiecewiseArray

Count = Callable[[int], None]
"""Counts bytes that were written."""


def write_npy(file: IO[bytes], array: PiecewiseArray, count: Count) -> None:
    """Write one array as a ``.npy`` file."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in array.pieces():
        data = np.ascontiguousarray(piece, array.dtype)
        file.write(data.reshape(-1).view(np.uint8).data)
        count(data.nbytes)


def write_npz(file: IO[bytes], arrays: Sequence[PiecewiseArray], count: Count) -> None:
    """Write several arrays as a ``.npz`` file; the bytes depend on nothing but the arrays."""
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for array in arrays:
            # A member of this kind has the same date on every machine.
            member = ZipInfo(f"{array.name}.npy")
            with archive.open(member, "w", force_zip64=True) as stream:
                write_npy(stream, array, count)
