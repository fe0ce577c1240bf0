"""Memory through which the blocks of the kernel of a mixture exchange scores and products."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ninfer_runtime.cuda.rows import address
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear.weight_records import ROWS
from ninfer_runtime.ops.moe_experts.few_schedule import COLUMNS
from ninfer_runtime.ops.moe_experts.mixture_schedule import PRODUCT_WORDS

_WORD_BYTES = 8
_STATE_WORDS = 16
_SCORE_WORDS = COLUMNS * 514


@dataclass(frozen=True, slots=True)
class MixtureExchange:
    """Zeros before the first launch. One launch at a time may use it: all are on the device's stream.

    Attributes:
        memory: The state, then the words; two float32 a word.
        parts_at: The word from which on parts of the shared expert's row tiles lie.
        products_at: Where products begin.
        words: How many words there are.
    """

    memory: Tensor
    parts_at: int
    products_at: int
    words: int

    @property
    def state(self) -> int:
        """Address of the number of launches."""
        return address(self.memory)

    @property
    def exchanged(self) -> int:
        """Address of the words."""
        return self.state + _STATE_WORDS * _WORD_BYTES


_EXCHANGES: WeakKeyDictionary[CudaDevice, MixtureExchange] = WeakKeyDictionary()


def exchange_of(device: CudaDevice) -> MixtureExchange:
    """That of a device."""
    exchange = _EXCHANGES.get(device)
    if exchange is None:
        parts = device.target.multiprocessors * 2 * ROWS * COLUMNS
        words = _SCORE_WORDS + parts + PRODUCT_WORDS
        memory = device.zeros((2 * (_STATE_WORDS + words),), DType.FP32)
        products_at = _SCORE_WORDS + parts
        exchange = MixtureExchange(memory, _SCORE_WORDS, products_at, words)
        _EXCHANGES[device] = exchange
    return exchange
