"""The most that the device reads from its memory: what every op is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_runtime.bench.timing import time_us
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import LONG, POINTER, Geometry
from ninfer_runtime.device.cuda import CudaDevice

SOURCE = "bench/bandwidth.cu"
LOADS = Kernel(SOURCE, "ninfer::read_loads_kernel")
_STAGE, _STAGES = 4096, 2
COPIES = Kernel(SOURCE, f"ninfer::read_copies_kernel<{_STAGE}, {_STAGES}>")
KERNELS = frozenset({LOADS, COPIES})

READ_BYTES = 4_000_000_000


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes per second.

    Attributes:
        loads: What plain 16-byte loads reach.
        copies: What asynchronous copies to shared memory reach.
    """

    loads: float
    copies: float

    @property
    def read(self) -> float:
        """The denominator of every fraction of bandwidth."""
        return max(self.loads, self.copies)


def measure_ceilings(device: CudaDevice) -> Ceilings:
    """Measure with one large array of random bytes."""
    with device.allocating(), device.on_stream():
        words = device.xp.random.randint(0, 2**32, READ_BYTES // 4, dtype=np.uint32)
    result = device.upload(np.zeros(1, np.uint32))
    address, sms = words.data.ptr, device.target.multiprocessors

    def loads(blocks: int) -> float:
        arguments = [
            (address, POINTER),
            (READ_BYTES // 16, LONG),
            (result.data.ptr, POINTER),
        ]
        return time_us(
            device, lambda: device.launch(LOADS, Geometry(blocks * sms, 1024), arguments), replays=5
        )

    def copies(blocks: int) -> float:
        shared = 1024 + 8 * _STAGES * _STAGE
        arguments = [(address, POINTER), (READ_BYTES // _STAGE, LONG)]
        geometry = Geometry(blocks * sms, 256, shared)
        return time_us(device, lambda: device.launch(COPIES, geometry, arguments), replays=5)

    fastest_loads = min(loads(blocks) for blocks in (2, 4, 16))
    fastest_copies = min(copies(blocks) for blocks in (1, 2, 3))
    return Ceilings(READ_BYTES / fastest_loads * 1e6, READ_BYTES / fastest_copies * 1e6)
