"""What the device gives back of steps, without anybody waiting for it."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.base import Device, Mark
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError


class Egress:
    """Host memory for the results of the last steps.

    Args:
        device: Where steps are executed.
        num_words: Most words of a step.
    """

    KEPT = 32
    """Steps of which the results are there at the same time."""

    def __init__(self, device: Device, num_words: int) -> None:
        self._device = device
        self._block = device.pinned(self.KEPT * num_words).reshape(self.KEPT, num_words)
        self.fetched = 0

    def fetch(self, words: Tensor) -> Returned:
        """Queue a copy of int32 words to the host."""
        host = self._block[self.fetched % self.KEPT, : words.shape[0]]
        self._device.copy_out(words, host)
        self.fetched += 1
        return Returned(self, self.fetched, host, self._device.mark())


class Returned:
    """Words that are on their way to the host."""

    def __init__(self, egress: Egress, number: int, host: np.ndarray, mark: Mark) -> None:
        self._egress = egress
        self._number = number
        self._host = host
        self._mark = mark

    def wait(self) -> np.ndarray:
        """The words, once they are there.

        Raises:
            OpArgumentError: So many steps have been made since that they were overwritten.
        """
        age = self._egress.fetched - self._number
        if age >= self._egress.KEPT:
            expected = f"read before {self._egress.KEPT} more steps"
            raise OpArgumentError("executor", "choice", expected=expected, found=age)
        self._mark.wait()
        return self._host.copy()
