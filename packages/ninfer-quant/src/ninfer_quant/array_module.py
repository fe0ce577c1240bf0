"""Where encoders compute: NumPy, or CuPy on a GPU, which has the same functions.

Encoders are written once over an array module `xp`. What a library of its own would be needed for
on a GPU, such as the small floats of `ml_dtypes`, they make from integers and binary32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import local
from typing import Any, Literal, get_args

import numpy as np

from ninfer_runtime.device import get_device
from ninfer_runtime.errors import DeviceError

Device = Literal["cpu", "cuda"]
DEVICES: tuple[Device, ...] = get_args(Device)

Array = Any
"""An array of the module that the work is done with."""


_thread = local()


@cache
def array_module(device: Device) -> Any:
    """The array module of a device: ``numpy``, or ``cupy`` with the first GPU in use.

    Raises:
        DeviceError: There is no GPU, or no CuPy.
    """
    return get_device(device).xp


def default_device() -> Device:
    """``cuda`` if there is a GPU that can be used, else ``cpu``."""
    try:
        array_module("cuda")
    except DeviceError:
        return "cpu"
    return "cuda"


def is_numpy(xp: Any) -> bool:
    """Whether an array module is NumPy."""
    return xp is np


@contextmanager
def own_stream(device: Device) -> Iterator[None]:
    """On a GPU, queue what the block does apart from the work of other threads.

    Transfers and kernels of several workers then overlap. A thread keeps its stream, because CuPy
    keeps freed memory apart for each stream.
    """
    xp = array_module(device)
    if is_numpy(xp):
        yield
        return
    if not hasattr(_thread, "stream"):
        _thread.stream = xp.cuda.Stream(non_blocking=True)
    with _thread.stream:
        yield


def to_binary32(xp: Any, values: np.ndarray) -> Array:
    """Bring host values to the device as binary32, rounded to nearest.

    What is longer than 16 bits is rounded on the host; bf16 travels as it is.
    """
    if is_numpy(xp):
        with np.errstate(over="ignore"):
            return values.astype(np.float32, copy=False)
    if values.dtype.name == "bfloat16":
        words = xp.asarray(np.ascontiguousarray(values).view(np.uint16))
        return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if values.dtype == np.float16:
        return xp.asarray(values).astype(np.float32)
    with np.errstate(over="ignore"):
        return xp.asarray(values.astype(np.float32))


def to_host(xp: Any, array: Array) -> np.ndarray:
    """Bring an array to the host."""
    host: np.ndarray = array if is_numpy(xp) else xp.asnumpy(array)
    return host
