"""From the options of ``ninfer-serve`` to the settings of a server and of its engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ninfer_format.commandline import Terminal
from ninfer_format.errors import NInferError, UsageError
from ninfer_runtime import environment
from ninfer_runtime.cli.model_options import choose_backend
from ninfer_runtime.cli.sampling_options import (
    GREEDY_CONFLICT,
    is_greedy_conflict,
    sampling_overrides,
)
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.environment import LogLevel
from ninfer_server.settings import MIB, ServerSettings, digest_api_keys

DEFAULT_MAX_CONTEXT = 8192
"""Longest sequence in tokens when none is given and the model allows it."""

_MS = 1000


def check_options(options: Mapping[str, Any], problems: list[str]) -> None:
    """Check what depends on several options, on files and on the environment.

    Args:
        options: Values by parameter name; wrong ones are None.
        problems: What is known to be wrong already.

    Raises:
        UsageError: With everything that is wrong.
    """
    if is_greedy_conflict(options):
        problems.append(GREEDY_CONFLICT)
    for check in (environment.model, environment.backend, environment.log_level):
        with _noting(problems):
            check()
    with _noting(problems):
        _api_keys(options)
    if problems:
        raise UsageError("; ".join(problems))


def server_settings(options: Mapping[str, Any]) -> ServerSettings:
    """Return the settings of the HTTP side from checked options."""
    return ServerSettings(
        model_id=options["model_id"],
        accept_any_model=options["accept_any_model"],
        api_key_digests=digest_api_keys(_api_keys(options)),
        cors=options["cors"],
        compatibility=options["compat"],
        max_pending_requests=options["max_pending_requests"],
        pending_timeout_s=options["pending_timeout_ms"] / _MS,
        default_max_tokens=options["default_max_tokens"],
        max_request_bytes=options["max_request_mib"] * MIB,
        sampling=sampling_overrides(options),
        seed=options["seed"],
        enable_thinking=False if options["no_thinking"] else None,
        preserve_thinking=True if options["preserve_thinking"] else None,
        shutdown_grace_s=options["shutdown_grace_s"],
    )


def engine_options(options: Mapping[str, Any], model: Path) -> EngineOptions:
    """Return the options of the engine from checked options."""
    return EngineOptions(
        model=model,
        backend=choose_backend(options["backend"]),
        device=options["device"],
        max_context=options["max_context"],
        default_max_context=DEFAULT_MAX_CONTEXT,
        prefill_chunk=options["prefill_chunk"],
        kv_dtype=options["kv_dtype"],
        use_cuda_graph=options["cuda_graph"],
        max_pending_requests=options["max_pending_requests"],
        pending_timeout_s=options["pending_timeout_ms"] / _MS,
        chat_template=options["chat_template"],
    )


def log_level(terminal: Terminal, named: LogLevel | None) -> LogLevel:
    """Return what is logged: the named level, else what -q or -v ask for, else the environment."""
    if named is not None:
        return named
    if terminal.quiet:
        return "error"
    if terminal.verbose:
        return "debug"
    return environment.log_level() or "info"


def _api_keys(options: Mapping[str, Any]) -> list[str]:
    """Return the accepted keys: those of the command line, else the environment's.

    Raises:
        UsageError: A key is empty, or a file has none or cannot be read.
    """
    keys = list(options["api_key"] or ())
    if not all(key.strip() for key in keys):
        raise UsageError("--api-key must not be empty")
    if options["api_key_file"] is not None:
        keys += _read_keys(options["api_key_file"])
    elif not keys:
        configured = environment.api_key()
        keys = [] if configured is None else [configured]
    return [key.strip() for key in keys]


def _read_keys(path: Path) -> list[str]:
    """Read one key a line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file cannot be read ({error})", path=path) from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise UsageError("--api-key-file holds no key", path=path)
    return keys


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except NInferError as error:
        problems.append(str(error))
