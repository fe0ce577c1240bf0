"""Values of a chunk, brought to where a method computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_format.encoders.sources import check_floating_matrix
from ninfer_format.errors import ArtifactError
from ninfer_quant.array_module import Array, array_module, is_numpy, to_binary32
from ninfer_quant.methods.request import MethodRequest

_SMALLEST_ON_GPU = np.float32(2.0**-110)
"""Below this a step of some encoder may be subnormal, and CuPy's kernels take that for zero."""


def chunk_values(request: MethodRequest, first: int, last: int) -> tuple[Any, Array]:
    """Rows of the object of a request, where they are to be encoded.

    That is the request's device, but for rows with values so small that a GPU would lose them.

    Args:
        request: The object.
        first: First row.
        last: End of the rows.

    Returns:
        The array module, and values of it: float32 ``[rows, K]``.

    Raises:
        ArtifactError: `codec`: the values are not floating, or not finite in binary32.
    """
    values = request.matrix(first, last)
    check_floating_matrix(values)
    xp = array_module(request.device)
    x = to_binary32(xp, values)
    # What was finite in its own type may not be in binary32.
    if values.dtype.itemsize > x.dtype.itemsize and not bool(xp.isfinite(x).all()):
        raise ArtifactError("codec", "a source value is beyond binary32")
    if not is_numpy(xp):
        # Compared as integers, which order magnitudes alike and are not flushed.
        words = x.view(xp.uint32) & np.uint32(0x7FFFFFFF)
        if bool(((words > 0) & (words < _SMALLEST_ON_GPU.view(np.uint32))).any()):
            return np, to_binary32(np, values)
    return xp, x
