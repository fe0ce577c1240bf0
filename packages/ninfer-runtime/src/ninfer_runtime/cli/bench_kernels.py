"""What ``ninfer-bench --compile-only`` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ninfer_format.commandline import Progress, Terminal

if TYPE_CHECKING:
    from ninfer_runtime.cuda.nvrtc import Cubin


def compile_all(terminal: Terminal, architectures: tuple[str, ...]) -> None:
    """Compile every kernel for some architectures, for all if none is named.

    Raises:
        UsageError: An architecture is unknown.
        KernelCompileError: A kernel has an error.
    """
    from ninfer_format.errors import UsageError
    from ninfer_runtime import environment
    from ninfer_runtime.bench.kernels import OTHER_KERNELS
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
        for kernel in OTHER_KERNELS.union(
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
