"""What the device leaves of its steps in the host's memory, without anybody waiting for it."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.base import Device, Mark
from ninfer_runtime.errors import OpArgumentError


class Egress:
    """Host memory for the tokens that the last steps have chosen.

    Args:
        device: Where steps are executed.
        num_lanes: Most tokens of a step.

    Attributes:
        tokens: [N], int32: the memory as the device sees it.
    """

    KEPT = 32
    """Steps of which the tokens are there at the same time."""

    def __init__(self, device: Device, num_lanes: int) -> None:
        host, self.tokens = device.shared(self.KEPT * num_lanes)
        self._host = host.reshape(self.KEPT, num_lanes)
        self.expected = 0

    @property
    def place(self) -> int:
        """Element that the first token goes to of the step that is expected next."""
        return self.expected % self.KEPT * self._host.shape[1]

    def expect(self, num_tokens: int, mark: Mark) -> Returned:
        """The tokens of a step, which are at `place` when a mark has been passed."""
        host = self._host[self.expected % self.KEPT, :num_tokens]
        self.expected += 1
        return Returned(self, self.expected, host, mark)


class Returned:
    """Tokens that the host will have."""

    def __init__(self, egress: Egress, number: int, host: np.ndarray, mark: Mark) -> None:
        self._egress = egress
        self._number = number
        self._host = host
        self._mark = mark

    def wait(self) -> np.ndarray:
        """The tokens, once they are there.

        Raises:
            OpArgumentError: So many steps have been made since that they were overwritten.
        """
        age = self._egress.expected - self._number
        if age >= self._egress.KEPT:
            expected = f"read before {self._egress.KEPT} more steps"
            raise OpArgumentError("executor", "choice", expected=expected, found=age)
        self._mark.wait()
        return self._host.copy()
