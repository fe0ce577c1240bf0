"""Buffers through which bytes go to a GPU while the host already prepares the next ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ninfer_runtime.cuda.driver import check, driver
from ninfer_runtime.cuda.streams import Stream
from ninfer_runtime.device.dtypes import DType

if TYPE_CHECKING:
    from ninfer_runtime.device.cuda import CudaDevice

BUFFERS = 2
"""One is filled while the GPU takes the other."""

Fill = Callable[[NDArray[np.uint8]], object]
"""Writes the bytes that are to be sent."""


class Staging:
    """Pinned buffers on the host, each with one on the device and a stream, that take turns.

    Args:
        device: The GPU.
        num_bytes: Size of a buffer.
    """

    def __init__(self, device: CudaDevice, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._device = device
        # From now on what is allocated is not in use by earlier work.
        device.synchronize()
        self._buffers = [_Buffer(device, num_bytes) for _ in range(BUFFERS)]
        self._turns = cycle(self._buffers)

    @contextmanager
    def send(
        self, num_bytes: int, fill: Fill, target: int | None = None
    ) -> Iterator[tuple[int, Stream]]:
        """Send bytes; what is queued inside finds them on the device.

        Later work on the device's own stream begins when that is done.

        Args:
            num_bytes: How many, at most `num_bytes` of the buffers.
            fill: Writes them.
            target: Where they go; by default to the buffer on the device.

        Yields:
            The address of the bytes on the device and the stream to queue work on.
        """
        buffer = next(self._turns)
        buffer.stream.synchronize()
        fill(buffer.host[:num_bytes])
        address = buffer.address if target is None else target
        stream = driver().CUstream(buffer.stream.handle)
        check(
            driver().cuMemcpyHtoDAsync(address, buffer.host.ctypes.data, num_bytes, stream),
            f"copy of {num_bytes} bytes to the GPU",
        )
        yield address, buffer.stream
        self._device.stream.wait(buffer.stream.record())

    def close(self) -> None:
        """Wait until everything has arrived and give the buffers back."""
        self._turns = cycle(())
        while self._buffers:  # no name stays for a buffer, so that its memory is free afterwards
            self._buffers.pop().stream.synchronize()
        self._device.xp.get_default_pinned_memory_pool().free_all_blocks()


class _Buffer:
    def __init__(self, device: CudaDevice, num_bytes: int) -> None:
        self.host = device.pinned(-(-num_bytes // 4)).view(np.uint8)
        self._memory = device.empty((num_bytes,), DType.UINT8)
        self.address = int(self._memory.array.data.ptr)
        self.stream = Stream()
