"""``ninfer-bench``: speed of ops, and compilation of kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from ninfer_format.commandline import (
    GroupedCommand,
    Progress,
    Terminal,
    common_options,
    run,
    version_option,
)

if TYPE_CHECKING:
    from ninfer_runtime.cuda.nvrtc import Cubin

SCHEMA = "ninfer-bench/1"

OPS = ("linear",)

HEADINGS = {
    "Ops": ("ops", "repetitions", "device"),
    "Kernels": ("compile_only", "arch"),
}

EPILOG = """
\b
Examples:
  ninfer-bench --ops linear -r 3 --json > linear.json
  ninfer-bench --compile-only --arch sm_90a
"""


@click.command(
    cls=GroupedCommand,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--ops",
    type=click.Choice(OPS),
    multiple=True,
    help="Op to time, beside the read bandwidth of the device; may be given several times.",
)
@click.option(
    "-r",
    "--repetitions",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each case is measured; the median is reported.",
)
@click.option(
    "--device",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the GPU.",
)
@click.option(
    "--compile-only",
    is_flag=True,
    help="Compile every kernel; needs no GPU.",
)
@click.option(
    "--arch",
    multiple=True,
    metavar="sm_XY[a]",
    help="Architecture to compile for, for example sm_90a; may be given several times.  "
    "[default: all]",
)
@version_option("ninfer-runtime")
@common_options(SCHEMA)
def command(terminal: Terminal, **options: Any) -> None:
    """Measure ops on the GPU, or compile all kernels without one."""
    from ninfer_format.errors import UsageError

    if options["compile_only"] == bool(options["ops"]):
        raise UsageError("exactly one of --ops and --compile-only is needed")
    if options["arch"] and not options["compile_only"]:
        raise UsageError("--arch goes with --compile-only")
    if options["compile_only"]:
        _refuse_given("repetitions", "device")
        _compile(terminal, options["arch"])
    else:
        _time_ops(terminal, options["device"], options["repetitions"])


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, SCHEMA)


def _refuse_given(*names: str) -> None:
    """Refuse options that mean nothing when no op is timed."""
    from ninfer_format.errors import UsageError

    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"--{name} goes with --ops")


def _compile(terminal: Terminal, architectures: tuple[str, ...]) -> None:
    from ninfer_format.errors import UsageError
    from ninfer_runtime import environment
    from ninfer_runtime.bench import ceilings
    from ninfer_runtime.cuda.compilation import compile_kernels
    from ninfer_runtime.cuda.module_cache import ModuleCache
    from ninfer_runtime.cuda.target import TYPICAL_TARGETS
    from ninfer_runtime.ops.kernels import every_kernel, ops_with_kernels

    for name in architectures:
        if name not in TYPICAL_TARGETS:
            raise UsageError(
                f"--arch {name} is not one of {', '.join(TYPICAL_TARGETS)}",
            )
    targets = {
        (kernel, architecture)
        for architecture in architectures or TYPICAL_TARGETS
        for kernel in ceilings.KERNELS.union(
            *(every_kernel(op, TYPICAL_TARGETS[architecture]) for op in ops_with_kernels())
        )
    }
    cache = ModuleCache(environment.kernel_cache_dir())
    if (reason := cache.refusal()) is not None:
        terminal.warn(f"{cache.directory}: {reason}: what is compiled will not be kept")
    with Progress(terminal, "compiling", total=len(targets)) as progress:
        cubins = compile_kernels(targets, cache, advance=progress.advance)
    if terminal.json:
        terminal.print_json({"kernels": [_resources(*item) for item in sorted(cubins.items())]})
        return
    for architecture in sorted({architecture for _, architecture in cubins}):
        found = [cubin for (_, name), cubin in cubins.items() if name == architecture]
        registers = max(cubin.registers for cubin in found)
        size = sum(len(cubin.data) for cubin in found)
        click.echo(
            f"{architecture:<8}{len(found):>5} kernels, at most {registers} registers,"
            f" {size / 1e6:.1f} MB"
        )


def _resources(target: tuple[Any, str], cubin: Cubin) -> dict[str, Any]:
    kernel, architecture = target
    return {
        "source": kernel.source,
        "instance": kernel.instance,
        "architecture": architecture,
        "registers": cubin.registers,
        "stack_bytes": cubin.stack_bytes,
        "spill_bytes": cubin.spill_bytes,
        "bytes": len(cubin.data),
    }


def _time_ops(terminal: Terminal, index: int, repetitions: int) -> None:
    from ninfer_runtime.bench.ceilings import KERNELS, measure_ceilings
    from ninfer_runtime.bench.linear import LinearCase, run_linear
    from ninfer_runtime.cuda.driver import driver_release
    from ninfer_runtime.cuda.nvrtc import nvrtc_version
    from ninfer_runtime.device.cuda import CudaDevice
    from ninfer_runtime.ops.kernels import every_kernel
    from ninfer_runtime.ops.linear.cases import DENSE_27B_SHAPES, TIMED_COLUMNS, WEIGHT_FORMATS

    device = CudaDevice(index)
    kernels = every_kernel("linear", device.target) | KERNELS
    with Progress(terminal, "compiling", total=len(kernels)) as progress:
        device.prepare(kernels, progress.advance)
    ceilings = measure_ceilings(device)
    most = max(TIMED_COLUMNS) if device.target.has_wgmma else 8
    cases = [
        LinearCase(name, matrix, shape, columns)
        for name in WEIGHT_FORMATS
        for matrix, shape in DENSE_27B_SHAPES.items()
        for columns in TIMED_COLUMNS
        if columns <= most
    ]
    with Progress(terminal, "measuring", total=len(cases)) as progress:
        rows = list(
            run_linear(device, ceilings, cases, repetitions=repetitions, advance=progress.advance)
        )
    environment = {
        "device": device.properties.name,
        "driver": driver_release(),
        "cuda_of_driver": ".".join(map(str, device.properties.driver_version)),
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "read_bytes_s": {"loads": ceilings.loads, "copies": ceilings.copies},
    }
    if terminal.json:
        terminal.print_json({"environment": environment, "repetitions": repetitions, "ops": rows})
    else:
        _print_rows(environment, rows)


def _print_rows(environment: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    read = environment["read_bytes_s"]
    click.echo(
        f"{environment['device']}: reads {read['loads'] / 1e12:.2f} TB/s by loads,"
        f" {read['copies'] / 1e12:.2f} by copies"
    )
    click.echo(f"{'format':<20} {'N x K':>14} {'MB':>7} {'T':>3} {'us':>8} {'GB/s':>6}   of read")
    for row in rows:
        shape = f"{row['N']}x{row['K']}"
        click.echo(
            f"{row['format']:<20} {shape:>14} {row['megabytes']:>7.1f} {row['T']:>3}"
            f" {row['us']:>8.2f} {row['gb_s']:>6.0f}   {row['fraction_of_read']:>6.1%}"
        )
