"""The CUDA driver through cuda-bindings: imported on first use, results checked."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from ninfer_runtime.errors import DeviceError


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


def check(result: tuple[Any, ...], what: str) -> Any:
    """The values of a driver call.

    Args:
        result: What the call returned: its code, then the values.
        what: What was attempted, for the error.

    Raises:
        DeviceError: The call failed.
    """
    code, *values = result
    if int(code):
        raise DeviceError(f"{what} failed: {code.name}")
    return values[0] if len(values) == 1 else tuple(values)
