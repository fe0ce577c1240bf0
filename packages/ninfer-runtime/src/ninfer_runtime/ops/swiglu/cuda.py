"""Launch of `swiglu` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.pointwise import launch_pointwise, pointwise_kernels
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.tensor import Tensor


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return pointwise_kernels("swiglu")


def swiglu(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    launch_pointwise("swiglu", gate, up, out)
