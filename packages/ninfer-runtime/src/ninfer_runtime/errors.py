"""Errors of the runtime.

::

    NInferError
    ├── OpArgumentError      an op was called with an argument outside its contract
    ├── UnsupportedOpError   no kernel for this device, shape or dtype
    ├── DeviceError          a device is absent or failed
    │   ├── KernelCompileError   ... because a kernel does not compile
    │   ├── DeviceMemoryError    ... because its memory is full
    │   └── DeviceFailedError    ... at its work, for another reason
    ├── StartupError         an engine cannot be built from these options and this artifact
    │   ├── ContextError     ... because the context exceeds what the model was made for
    │   └── CapacityError    ... because it does not fit into memory
    └── RequestError         one request cannot be served; the engine stays available
"""

from __future__ import annotations

from enum import StrEnum

from ninfer_format.errors import ExitCode, NInferError


class OpArgumentError(NInferError, ValueError):
    """An op was called with an argument outside its contract.

    Args:
        op: Name of the op.
        argument: Name of the argument.
        expected: What the contract asks for.
        found: What was given.
    """

    code = "op_argument"
    exit_code = ExitCode.INTERNAL

    def __init__(self, op: str, argument: str, *, expected: object, found: object) -> None:
        super().__init__(f"{op}: argument {argument!r}: expected {expected}, found {found}")
        self.op = op
        self.argument = argument
        self.expected = expected
        self.found = found


class UnsupportedOpError(NInferError):
    """No implementation of an op exists for a device; nothing slower takes its place.

    Args:
        op: Name of the op.
        device: Kind of the device, for example ``cuda``.
        detail: Shape, dtype and compute capability that were asked for.
        hint: What to do about it.
    """

    code = "unsupported_op"
    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, op: str, device: str, *, detail: str = "", hint: str | None = None) -> None:
        asked = f" for {detail}" if detail else ""
        super().__init__(f"op {op} has no implementation on device {device}{asked}", hint=hint)
        self.op = op
        self.device = device


class DeviceError(NInferError):
    """A device is absent or failed."""

    code = "device"
    exit_code = ExitCode.UNAVAILABLE


class KernelCompileError(DeviceError):
    """A kernel does not compile.

    Args:
        kernel: Instance and source.
        architecture: What it was compiled for, for example ``sm_90a``.
        log: What the compiler says.
    """

    code = "kernel_compile"
    exit_code = ExitCode.INTERNAL

    def __init__(self, kernel: str, architecture: str, log: str) -> None:
        super().__init__(f"{kernel} does not compile for {architecture}:\n{log}")
        self.kernel = kernel
        self.architecture = architecture
        self.log = log

    def __reduce__(self) -> tuple[type[KernelCompileError], tuple[str, str, str]]:
        # It travels between the processes that compile.
        return type(self), (self.kernel, self.architecture, self.log)


class DeviceMemoryError(DeviceError):
    """The memory of a device is full."""

    code = "device_memory"
    exit_code = ExitCode.CAPACITY


class DeviceFailedError(DeviceError):
    """A device that is there refused or failed at its work."""

    code = "device_failed"
    exit_code = ExitCode.FAILED


_STARTUP_EXIT_CODES = {
    "component_missing": ExitCode.INVALID_INPUT,
    "no_full_attention": ExitCode.INVALID_INPUT,
    "memory": ExitCode.CAPACITY,
    "device": ExitCode.UNAVAILABLE,
}


class StartupError(NInferError):
    """An engine cannot be built from these options and this artifact.

    Args:
        code: Machine-readable reason, for example ``context_domain``.
        message: What is wrong and what is allowed.
        path: The artifact, if it is the cause.
        hint: What to do about it.
    """

    def __init__(
        self, code: str, message: str, *, path: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.code = code
        self.exit_code = _STARTUP_EXIT_CODES.get(code, ExitCode.USAGE)


class ContextError(StartupError):
    """The context that was asked for exceeds what the model was made for.

    Args:
        found: Tokens that were asked for.
        largest: Longest sequence in tokens that the model was made for.
    """

    def __init__(self, found: int, largest: int) -> None:
        super().__init__("context_domain", f"max_context {found} is outside 1..{largest}")
        self.found = found
        self.largest = largest


class CapacityError(StartupError):
    """An engine does not fit into the memory of its device or host.

    Args:
        message: What is needed and what is free.
        needed_bytes: Bytes that the engine needs.
        free_bytes: Bytes that are free.
        hint: What to do about it.
    """

    def __init__(
        self, message: str, *, needed_bytes: int, free_bytes: int, hint: str | None = None
    ) -> None:
        super().__init__("memory", message, hint=hint)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class RequestErrorKind(StrEnum):
    """Why one request cannot be served."""

    INVALID_PROMPT = "invalid_prompt"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    CANCELLED = "cancelled"
    NON_FINITE_LOGITS = "non_finite_logits"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


_REQUEST_EXIT_CODES = {
    RequestErrorKind.INVALID_PROMPT: ExitCode.USAGE,
    RequestErrorKind.CONTEXT_LENGTH_EXCEEDED: ExitCode.CAPACITY,
    RequestErrorKind.CANCELLED: ExitCode.INTERRUPTED,
    RequestErrorKind.INTERNAL: ExitCode.INTERNAL,
}


class RequestError(NInferError):
    """One request cannot be served; the engine stays available for others.

    Args:
        kind: Why.
        message: What is wrong, in one line.
        prompt_tokens: Length of the prompt, where that is the cause.
        max_context: Longest context that the engine admits, where that is the cause.
        hint: What to do about it.
        exit_code: How a command ends where the cause says more than the kind does.
    """

    def __init__(
        self,
        kind: RequestErrorKind,
        message: str,
        *,
        prompt_tokens: int | None = None,
        max_context: int | None = None,
        hint: str | None = None,
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.code = str(kind)
        self.exit_code = exit_code or _REQUEST_EXIT_CODES.get(kind, ExitCode.FAILED)
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context
