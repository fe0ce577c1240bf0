"""What GPUs and their driver are, and whether kernels can be made for them."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.cuda.driver import check, driver
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Properties:
    """A GPU and its driver.

    Attributes:
        name: What the vendor calls the device.
        target: What the choice of a kernel depends on.
        driver_version: Newest CUDA version that the driver supports, major and minor.
    """

    name: str
    target: Target
    driver_version: tuple[int, int]


def read_properties(index: int) -> Properties:
    """Properties of a GPU.

    Raises:
        DeviceError: There is no such GPU, or no driver.
    """
    cuda = driver()
    count = check(cuda.cuDeviceGetCount(), "counting the GPUs")
    if not 0 <= index < count:
        raise DeviceError(
            f"there is no GPU {index}: {count} {'is' if count == 1 else 'are'} visible",
            hint="choose another device, or use the cpu backend",
        )
    device = check(cuda.cuDeviceGet(index), f"opening GPU {index}")
    attributes = cuda.CUdevice_attribute

    def attribute(name: str) -> int:
        key = getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(cuda.cuDeviceGetAttribute(key, device), f"reading {name}"))

    version = int(check(cuda.cuDriverGetVersion(), "reading the driver's version"))
    name = check(cuda.cuDeviceGetName(128, device), "reading the GPU's name")
    target = Target(
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )
    return Properties(
        name=name.split(b"\0")[0].decode(),
        target=target,
        driver_version=(version // 1000, version % 1000 // 10),
    )


def check_driver(supported: tuple[int, int], compiler: tuple[int, int]) -> None:
    """Refuse a driver that does not run what the installed compiler makes.

    Args:
        supported: CUDA version of the driver.
        compiler: Version of NVRTC. Machine code of any minor version runs on any driver of its major
            version.

    Raises:
        DeviceError: The driver is of an older major version.
    """
    if supported[0] < compiler[0]:
        raise DeviceError(
            f"the NVIDIA driver supports CUDA {supported[0]}.{supported[1]}, this installation"
            f" compiles for CUDA {compiler[0]}",
            hint="update the driver, or install ninfer-runtime with the extra cuda12",
        )
