"""Memory through which two blocks of a kernel exchange the sums of row tiles that they share."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ninfer_runtime.cuda.rows import address
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear.schedule import EXCHANGED_WORDS

TURNS = 8
"""Launches that may run beside one another; each has a part of its own."""

_WORD_BYTES = 8


@dataclass(slots=True)
class _Exchange:
    words: Tensor
    turn: int = 0


_EXCHANGES: WeakKeyDictionary[CudaDevice, _Exchange] = WeakKeyDictionary()


def exchange_address(device: CudaDevice) -> int:
    """Where the next launch exchanges sums: words of 0, which it leaves behind as well."""
    exchange = _EXCHANGES.get(device)
    if exchange is None:
        floats = TURNS * EXCHANGED_WORDS * _WORD_BYTES // 4
        exchange = _EXCHANGES[device] = _Exchange(device.zeros((floats,), DType.FP32))
    exchange.turn = (exchange.turn + 1) % TURNS
    return address(exchange.words) + exchange.turn * EXCHANGED_WORDS * _WORD_BYTES
