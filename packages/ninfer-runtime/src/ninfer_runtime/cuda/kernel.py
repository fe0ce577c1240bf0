"""Names of kernels and of the architectures that they are compiled for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from ninfer_runtime.errors import DeviceError

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
"""What every kernel is compiled for in the tests; other devices get the closest older one."""

OLDEST_CAPABILITY = (8, 0)
"""Ampere: bf16 tensor cores and asynchronous copies."""

PACKAGE = files("ninfer_runtime")
"""The installed package, where the sources of the kernels lie."""

INCLUDE = PACKAGE / "cuda" / "include"

_INCLUDE_LINE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """One instance of a kernel template; equal kernels are compiled once.

    Attributes:
        source: File in the package that defines it, for example ``ops/linear/skinny.cu``.
        instance: Its name as a C++ expression, for example
            ``ninfer::linear_wide_kernel<0, 32, 5, 4>``.
    """

    source: str
    instance: str

    def __str__(self) -> str:
        return f"{self.instance} in {self.source}"

    def read(self) -> str:
        """The text of the source."""
        return PACKAGE.joinpath(*self.source.split("/")).read_text(encoding="utf-8")


def headers_of(source: str) -> dict[str, str]:
    """The project's headers that a source includes, directly or not, by the name it gives them.

    Args:
        source: Text of a kernel source.

    Raises:
        DeviceError: A header does not exist.
    """
    found: dict[str, str] = {}
    pending = _INCLUDE_LINE.findall(source)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = _read_header(name)
            pending += _INCLUDE_LINE.findall(found[name])
    return dict(sorted(found.items()))


def architecture_of(capability: tuple[int, int]) -> str:
    """What to compile for on a device of this compute capability.

    Hopper gets the target that has its own instructions. Unlisted devices get the newest listed one
    of their generation that is not newer than they are: its machine code runs there.

    Raises:
        DeviceError: The device is older than Ampere, or of a generation that no kernel knows.
    """
    major, minor = capability
    if capability < OLDEST_CAPABILITY:
        raise DeviceError(
            f"the GPU has compute capability {major}.{minor}, at least 8.0 (Ampere) is needed",
            hint="use the cpu backend",
        )
    fitting = [
        name
        for name in ARCHITECTURES
        if (listed := capability_of(name))[0] == major and listed <= capability
    ]
    if not fitting:
        raise DeviceError(
            f"no kernel knows GPUs of compute capability {major}.{minor}",
            hint="use the cpu backend",
        )
    return fitting[-1]


def capability_of(architecture: str) -> tuple[int, int]:
    """The compute capability that an architecture such as ``sm_90a`` names.

    Raises:
        DeviceError: It is not one of `ARCHITECTURES`.
    """
    if architecture not in ARCHITECTURES:
        raise DeviceError(
            f"unknown architecture {architecture!r} (expected one of {', '.join(ARCHITECTURES)})"
        )
    return divmod(int(architecture.removeprefix("sm_").rstrip("a")), 10)


def _read_header(name: str) -> str:
    header: Traversable = INCLUDE.joinpath(*name.split("/"))
    if not header.is_file():
        raise DeviceError(f"kernel header {name} does not exist")
    return header.read_text(encoding="utf-8")
