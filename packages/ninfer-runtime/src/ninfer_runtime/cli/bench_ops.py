"""What ``ninfer-bench --ops`` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from ninfer_format.commandline import Progress, Terminal

if TYPE_CHECKING:
    from ninfer_runtime.bench.ceilings import Ceilings
    from ninfer_runtime.device.cuda import CudaDevice

LINEAR = "linear"
OPS = (LINEAR, "gated_linear", "add_rms_norm", "sample", "gated_delta_net", "paged_attention")


def time_ops(terminal: Terminal, options: dict[str, Any]) -> dict[str, Any]:
    """Measure ops on a GPU.

    Returns:
        The document.

    Raises:
        DeviceError: There is no GPU.
        DeviceFailedError: A result is wrong.
    """
    from ninfer_runtime.bench import environment
    from ninfer_runtime.bench.ceilings import KERNELS, measure_ceilings
    from ninfer_runtime.device.registry import get_device
    from ninfer_runtime.ops.kernels import every_kernel

    device = cast("CudaDevice", get_device("cuda", options["device"]))
    kernels = KERNELS.union(*(every_kernel(op, device.target) for op in options["ops"]))
    with Progress(terminal, "compiling", total=len(kernels)) as progress:
        device.prepare(kernels, progress.advance)
    ceilings = measure_ceilings(device)
    rows = [
        row
        for op in options["ops"]
        for row in _rows(terminal, device, ceilings, op, options["repetitions"])
    ]
    facts = environment.describe(device)
    facts["read_bytes_s"] = {"loads": ceilings.loads, "copies": ceilings.copies}
    return {"environment": facts, "repetitions": options["repetitions"], "ops": rows}


def table(document: dict[str, Any]) -> Iterator[str]:
    """The lines of a document's table."""
    facts = document["environment"]
    read = facts["read_bytes_s"]
    yield (
        f"{facts['device']}: reads {read['loads'] / 1e12:.2f} TB/s by loads,"
        f" {read['copies'] / 1e12:.2f} by copies"
    )
    yield f"{'case':<42} {'MB':>7} {'us':>8} {'GB/s':>6}   of read  TFLOP/s"
    for row in document["ops"]:
        ratio = f"   {row['ratio']:.3f} of before" if "ratio" in row else ""
        yield (
            f"{_name(row):<42} {row['megabytes']:>7.1f} {row['us']:>8.2f} {row['gb_s']:>6.0f}"
            f"   {row['fraction_of_read']:>6.1%} {row['tflop_s']:>8.1f}{ratio}"
        )


def _name(row: dict[str, Any]) -> str:
    if row["op"] == LINEAR:
        return f"{row['format']} {row['N']}x{row['K']} T={row['T']}"
    return f"{row['op']} {row['case']}"


def _rows(
    terminal: Terminal, device: CudaDevice, ceilings: Ceilings, op: str, repetitions: int
) -> Iterator[dict[str, Any]]:
    from ninfer_runtime.bench import op_cases, ops
    from ninfer_runtime.bench.linear import run_linear

    if op == LINEAR:
        products = _linear_cases(device)
        with Progress(terminal, f"measuring {op}", total=len(products)) as progress:
            yield from run_linear(
                device, ceilings, products, repetitions=repetitions, advance=progress.advance
            )
        return
    cases = list(op_cases.cases(op))
    with Progress(terminal, f"measuring {op}", total=len(cases)) as progress:
        yield from ops.run_cases(
            device, ceilings, cases, repetitions=repetitions, advance=progress.advance
        )


def _linear_cases(device: CudaDevice) -> list[Any]:
    from ninfer_runtime.bench.linear import LinearCase
    from ninfer_runtime.ops.linear.cases import DENSE_27B_SHAPES, TIMED_COLUMNS, WEIGHT_FORMATS

    most = max(TIMED_COLUMNS) if device.target.has_wgmma else 8
    return [
        LinearCase(name, matrix, shape, columns)
        for name in WEIGHT_FORMATS
        for matrix, shape in DENSE_27B_SHAPES.items()
        for columns in TIMED_COLUMNS
        if columns <= most
    ]
