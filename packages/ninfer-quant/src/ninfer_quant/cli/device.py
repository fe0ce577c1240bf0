"""Choosing where encoders compute, and on how many threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ninfer_quant.array_module import Device

device_option = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Where weights are quantized.  [default: cuda if there is a GPU]",
)
jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Worker threads.  [default: half the processors, at most 8]",
)


def choose_device(device: Device | None) -> Device:
    """The device that was asked for, else the best there is.

    Raises:
        DeviceError: It was asked for and is not there.
    """
    from ninfer_quant.array_module import array_module, default_device

    if device is None:
        return default_device()
    array_module(device)
    return device


rows_per_chunk_option = click.option(
    "--rows-per-chunk",
    type=click.IntRange(min=1),
    help="Matrix rows that a worker holds in memory at once.  [default: 512, on a GPU 4096]",
)


def choose_rows_per_chunk(given: int | None, device: Device) -> int:
    """Rows of a chunk: few enough for a processor's cache, or enough to keep a GPU busy."""
    return given or {"cpu": 512, "cuda": 4096}[device]
