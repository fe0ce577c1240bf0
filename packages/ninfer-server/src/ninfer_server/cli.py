"""``ninfer-serve``: serve one model over HTTP."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

import click

from ninfer_format.commandline import GroupedCommand, Terminal, common_options, run, version_option
from ninfer_format.errors import ExitCode
from ninfer_runtime.cli.model_options import MODEL_OPTION_NAMES, choose_model, model_options
from ninfer_runtime.cli.sampling_options import SAMPLING_OPTION_NAMES, sampling_options
from ninfer_runtime.cli.user_path import UserPath
from ninfer_runtime.environment import LogLevel
from ninfer_server.checked_option import CheckedOption, collected_problems

if TYPE_CHECKING:
    from socket import socket

    from ninfer_runtime.engine.engine import Engine
    from ninfer_server.state import ServerState

R = TypeVar("R")

SCHEMA = "ninfer-serve/1"

HEADINGS = {
    "Network": ("host", "port", "api_key", "api_key_file", "cors", "shutdown_grace_s"),
    "Model": (*MODEL_OPTION_NAMES, "model_id", "accept_any_model", "compat"),
    "Context and memory": ("max_context", "prefill_chunk"),
    "Limits": (
        "max_pending_requests",
        "pending_timeout_ms",
        "default_max_tokens",
        "max_request_mib",
    ),
    "Prompt": ("chat_template", "no_thinking", "preserve_thinking"),
    "Sampling": SAMPLING_OPTION_NAMES,
    "Logging": ("log_level",),
}

EPILOG = """
\b
Examples:
  ninfer-serve
  ninfer-serve model.ninfer --port 8000 --api-key-file keys.txt
  ninfer-serve model.ninfer --max-context 32768 --no-thinking
  ninfer-serve model.ninfer --port 0 --json
"""


def _option(name: str, **attributes: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    return click.option(name, cls=CheckedOption, show_default=True, **attributes)


def _check_prefill_chunk(
    ctx: click.Context, param: click.Parameter, value: int | None
) -> int | None:
    from ninfer_runtime.engine.options import PREFILL_CHUNK_MULTIPLE

    if value is not None and value % PREFILL_CHUNK_MULTIPLE:
        raise click.BadParameter(f"{value} is not a multiple of {PREFILL_CHUNK_MULTIPLE}")
    return value


def _check_model_id(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise click.BadParameter("it must not be empty")
    if value is not None and not _is_encodable(value):
        raise click.BadParameter(f"{value!r} is not valid UTF-8")
    return value


def _is_encodable(text: str) -> bool:
    """Whether text is characters only; bytes of the command line that are none are surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


@click.command(
    cls=GroupedCommand,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@model_options(CheckedOption)
@_option("--host", default="127.0.0.1", help="Name or address to listen on.")
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    help="Port to listen on; 0 takes a free one.",
)
@_option("--api-key", multiple=True, metavar="KEY", help="Key that clients must send; repeatable.")
@_option(
    "--api-key-file",
    type=UserPath(exists=True, dir_okay=False),
    help="File with one key a line.  [default: NINFER_API_KEY]",
)
@_option("--cors", is_flag=True, help="Let web pages of other origins call the server.")
@_option(
    "--shutdown-grace-s",
    type=click.FloatRange(min=0),
    default=10,
    callback=_check_finite,
    metavar="SECONDS",
    help="How long running requests may go on after a signal.",
)
@_option(
    "--model-id",
    callback=_check_model_id,
    metavar="NAME",
    help="Public name of the model.  [default: the artifact's name]",
)
@_option("--accept-any-model", is_flag=True, help="Take requests for any model name.")
@_option(
    "--compat",
    type=click.Choice(["lenient", "strict"]),
    default="lenient",
    help="Ignore or refuse fields that have no effect.",
)
@_option(
    "--max-context",
    type=click.IntRange(min=1),
    help="Longest prompt and answer, in tokens.  [default: 8192, or the model's limit]",
)
@_option(
    "--prefill-chunk",
    type=click.IntRange(min=1),
    default=1024,
    callback=_check_prefill_chunk,
    help="Prompt tokens executed at a time, a multiple of 128.",
)
@_option(
    "--max-pending-requests",
    type=click.IntRange(min=1),
    default=16,
    help="Requests that may wait beside the running one.",
)
@_option(
    "--pending-timeout-ms",
    type=click.IntRange(min=1),
    default=30_000,
    help="How long one may wait, in milliseconds.",
)
@_option(
    "--default-max-tokens",
    type=click.IntRange(min=1),
    default=8192,
    help="Output limit of requests that give none.",
)
@_option(
    "--max-request-mib",
    type=click.IntRange(min=1),
    default=384,
    help="Longest request body, in MiB.",
)
@_option(
    "--chat-template",
    type=UserPath(exists=True, dir_okay=False),
    help="Jinja file to use instead of the artifact's template.",
)
@_option("--no-thinking", is_flag=True, help="Answer without thinking unless asked to.")
@_option("--preserve-thinking", is_flag=True, help="Show the model its earlier thoughts.")
@sampling_options(CheckedOption)
@_option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    metavar="INTEGER",
    help="Seed of requests that give none.  [default: random]",
)
@_option(
    "--log-level",
    type=click.Choice(get_args(LogLevel)),
    help="Least severe lines to log.  [default: NINFER_LOG_LEVEL, else info]",
)
@version_option("ninfer-server")
@common_options(SCHEMA)
def command(terminal: Terminal, **options: Any) -> None:
    """Serve MODEL over HTTP with an OpenAI-compatible interface.

    Without MODEL, the artifact that NINFER_MODEL names is served, then the small model that comes
    with ninfer-runtime. Ctrl-C stops after the running requests, twice at once.
    """
    from ninfer_server.cli_settings import (
        check_options,
        engine_options,
        log_level,
        server_settings,
    )

    check_options(options, collected_problems(click.get_current_context()))
    settings = server_settings(options)

    from ninfer_server.line_writer import LineWriter
    from ninfer_server.listener import bind
    from ninfer_server.logs import configure_logging

    with LineWriter(FileIO(sys.stderr.fileno(), "w", closefd=False).write) as log:
        configure_logging(log_level(terminal, options["log_level"]), log.write)
        engine = engine_options(options, choose_model(terminal, options["model"]))
        listener = bind(options["host"], options["port"])

        from ninfer_runtime.engine.engine import Engine
        from ninfer_server.serve import serve

        serve(
            listener,
            settings,
            load=lambda: Engine(engine),
            announce=partial(_announce, terminal, listener),
        )


def main() -> NoReturn:
    """Run the command and end the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_before_serving)
    run(command, SCHEMA)


def _leave_before_serving(number: int, frame: object) -> NoReturn:
    """End the process like a server that is told to stop; `serve` has handlers of its own."""
    raise SystemExit(ExitCode.OK)


def _announce(terminal: Terminal, listener: socket, engine: Engine, state: ServerState) -> None:
    from ninfer_server.listener import url_of
    from ninfer_server.logs import get_logger
    from ninfer_server.state import MAX_CONCURRENCY

    facts: dict[str, Any] = {
        "url": url_of(listener),
        "model": state.model_id,
        "auth": bool(state.settings.api_key_digests),
        "max_context": engine.max_context,
        "max_concurrency": MAX_CONCURRENCY,
        "backend": engine.options.backend,
    }
    get_logger().info("ready", **{**facts, "auth": "on" if facts["auth"] else "off"})
    if terminal.json:
        click.echo(json.dumps({"schema": SCHEMA, "ok": True, **facts}, ensure_ascii=False))
