"""One kernel instance from source to machine code, by NVRTC; needs no GPU and no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.errors import DeviceError, KernelCompileError

OPTIONS = ("-std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")

_REGISTERS = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one kernel instance.

    Attributes:
        data: The cubin.
        symbol: Name of the kernel in it.
        registers: Registers of a thread.
        stack_bytes: Stack frame of a thread; 0 unless an array is indexed at run time.
        spill_bytes: Bytes that a thread writes to memory for want of registers.
    """

    data: bytes
    symbol: str
    registers: int
    stack_bytes: int
    spill_bytes: int


def nvrtc_version() -> tuple[int, int]:
    """Version of the NVRTC library that is used.

    Raises:
        DeviceError: NVRTC or cuda-bindings is not installed.
    """
    nvrtc = _nvrtc()
    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


def compile_source(
    kernel: Kernel, source: str, headers: dict[str, str], architecture: str
) -> Cubin:
    """Compile one instance.

    Args:
        kernel: What to compile.
        source: Text of its source.
        headers: What the source includes, by name.
        architecture: For example ``sm_90a``.

    Raises:
        KernelCompileError: The source has an error; the message holds the compiler's log.
        DeviceError: NVRTC or cuda-bindings is not installed.
    """
    data, symbol, log = _compile(kernel, source, headers, architecture, OPTIONS)
    if (resources := _resources(log, symbol)) is None:
        # What NVRTC takes from the driver's cache comes without the assembler's report.
        options = (*OPTIONS, "--no-cache")
        data, symbol, log = _compile(kernel, source, headers, architecture, options)
        resources = _resources(log, symbol)
    if resources is None:
        raise KernelCompileError(str(kernel), architecture, f"no resources are reported\n{log}")
    return Cubin(data, symbol, *resources)


def _compile(
    kernel: Kernel,
    source: str,
    headers: dict[str, str],
    architecture: str,
    options: tuple[str, ...],
) -> tuple[bytes, str, str]:
    """Machine code, name of the kernel in it, and the compiler's log."""
    nvrtc = _nvrtc()
    program = _value(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            kernel.source.encode(),
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    try:
        _value(nvrtc.nvrtcAddNameExpression(program, kernel.instance.encode()))
        words = [option.encode() for option in (f"-arch={architecture}", *options)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        log = _log(nvrtc, program)
        if int(result):
            raise KernelCompileError(str(kernel), architecture, _with_source_lines(log, source))
        symbol = _value(nvrtc.nvrtcGetLoweredName(program, kernel.instance.encode())).decode()
        data = bytes(_value(nvrtc.nvrtcGetCUBINSize(program)))
        _value(nvrtc.nvrtcGetCUBIN(program, data))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return data, symbol, log


def _nvrtc() -> Any:
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise DeviceError(
            f"CUDA kernels cannot be compiled: {error}",
            hint="install ninfer-runtime with the extra cuda13 or cuda12",
        ) from error
    return nvrtc


def _value(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if int(code):
        raise DeviceError(f"NVRTC failed: {code.name}")
    return values[0] if values else None


def _log(nvrtc: Any, program: Any) -> str:
    log = bytes(_value(nvrtc.nvrtcGetProgramLogSize(program)))
    _value(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0 \n").decode(errors="replace")


def _resources(log: str, symbol: str) -> tuple[int, int, int] | None:
    """Registers, stack bytes and spilled bytes, as the assembler reports them in the log.

    A source may hold other kernels that are no templates. The frame includes those of functions that
    the kernel calls. None if there is no report, which must not look like a kernel that needs nothing.
    """
    _, _, report = log.partition(f"entry function '{symbol}'")
    registers, stack = _REGISTERS.search(report), _STACK.search(report)
    if registers is None or stack is None:
        return None
    return int(registers[1]), int(stack[1]), max(int(stack[2]), int(stack[3]))


def _with_source_lines(log: str, source: str) -> str:
    """The log, each error of the source itself followed by the line that it is about."""
    lines = source.splitlines()
    shown = []
    for entry in log.splitlines():
        shown.append(entry)
        place = re.match(r"[^(]*\.cu\((\d+)\): error", entry)
        if place and int(place[1]) <= len(lines):
            shown.append(f"    {place[1]} | {lines[int(place[1]) - 1]}")
    return "\n".join(shown)
