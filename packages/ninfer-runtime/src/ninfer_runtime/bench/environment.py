"""What a figure depends on besides the command: revision, device, driver, compiler."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ninfer_runtime.device.base import Device


def describe(device: Device) -> dict[str, Any]:
    """The facts as JSON values.

    Args:
        device: Where the figures are measured.
    """
    facts: dict[str, Any] = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "version": _version(),
        "revision": revision(),
        "device": device.kind,
    }
    if device.kind == "cuda":
        facts |= _describe_gpu(device)
    return facts


def _describe_gpu(device: Any) -> dict[str, Any]:
    from ninfer_runtime.cuda.driver import driver_release
    from ninfer_runtime.cuda.nvrtc import nvrtc_version

    return {
        "device": device.properties.name,
        "driver": driver_release(),
        "cuda_of_driver": ".".join(map(str, device.properties.driver_version)),
        "nvrtc": ".".join(map(str, nvrtc_version())),
    }


def _version() -> str | None:
    """The installed version, None where the sources run without an installation."""
    try:
        return version("ninfer-runtime")
    except PackageNotFoundError:
        return None


def revision() -> str | None:
    """The commit of the checkout that this package lies in, with ``-dirty`` if it was changed."""
    folder = Path(str(files("ninfer_runtime")))
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
