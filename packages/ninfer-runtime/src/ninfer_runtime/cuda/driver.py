"""The CUDA driver through cuda-bindings: imported on first use, results checked."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ninfer_runtime.errors import DeviceError, DeviceFailedError, DeviceMemoryError

_VERSION_FILE = Path("/proc/driver/nvidia/version")
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


@cache
def driver() -> Any:
    """The module ``cuda.bindings.driver``, initialised.

    Raises:
        DeviceError: cuda-bindings or the driver is missing, or the driver refuses.
    """
    try:
        module = import_module("cuda.bindings.driver")
        (result,) = module.cuInit(0)
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"device 'cuda' is not available: this installation has no module {error.name}",
            hint="install ninfer-runtime with the extra cuda13 or cuda12, or use the cpu backend",
        ) from error
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(
            "device 'cuda' is not available: the NVIDIA driver is not installed",
            hint="install the driver, or use the cpu backend",
        ) from error
    if int(result):
        raise DeviceError(
            f"device 'cuda' is not available: the driver says {result.name}",
            hint="check that nvidia-smi lists a GPU, or use the cpu backend",
        )
    return module


def driver_release() -> str | None:
    """The vendor's number of the loaded kernel driver, None where the system does not tell it."""
    try:
        line = _VERSION_FILE.read_text().partition("\n")[0]
    except OSError:
        return None
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line)
    return found[1] if found else None


def check(result: tuple[Any, ...], what: str) -> Any:
    """The values of a driver call.

    Args:
        result: What the call returned: its code, then the values.
        what: What was attempted, for the error.

    Raises:
        DeviceMemoryError: The device has too little memory left.
        DeviceFailedError: The call failed for another reason.
    """
    code, *values = result
    if int(code):
        kind = DeviceMemoryError if code.name == _OUT_OF_MEMORY else DeviceFailedError
        raise kind(f"{what} failed: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)
