"""The options that every command takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from ninfer_format.commandline.terminal import Terminal
from ninfer_format.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = (
    click.option("--json", "json_output", is_flag=True, help="Print one JSON document on stdout."),
    click.option("-v", "--verbose", count=True, help="Say more on stderr; may be repeated."),
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors on stderr."),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Colours on a terminal.",
    ),
    click.option(
        "--progress",
        type=click.Choice(["auto", "rich", "plain", "off"]),
        default="auto",
        show_default=True,
        help="How progress is shown on stderr.",
    ),
    click.option("--no-progress", is_flag=True, help="The same as --progress off."),
    click.option("--debug", is_flag=True, help="Show a traceback when something fails."),
)


def common_options(schema: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add the shared options to a click command and hand it a `Terminal` as first argument.

    Args:
        schema: Name and version of the command's JSON document, for example ``ninfer/1``.

    Returns:
        A decorator; it stands directly above the function, below ``@click.command``.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @wraps(function)
        def with_terminal(**arguments: Any) -> R:
            progress = arguments.pop("progress")
            terminal = Terminal(
                schema=schema,
                json=arguments.pop("json_output"),
                verbose=arguments.pop("verbose"),
                quiet=arguments.pop("quiet"),
                color=arguments.pop("color"),
                progress="off" if arguments.pop("no_progress") else progress,
                debug=arguments.pop("debug"),
            )
            click.get_current_context().find_root().obj = terminal
            return function(terminal, **arguments)

        wrapped: Callable[..., R] = with_terminal
        for option in reversed(_OPTIONS):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def refuse_given(mode: str, *names: str) -> None:
    """Refuse parameters of the running command that mean nothing in one of its modes.

    Args:
        mode: What was chosen, as a user writes it, for example ``--ops``.
        names: Names of the parameters, as click has them.

    Raises:
        UsageError: One of them was given.
    """
    context = click.get_current_context()
    arguments = {
        parameter.name
        for parameter in context.command.params
        if isinstance(parameter, click.Argument)
    }
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            shown = name.upper() if name in arguments else f"--{name.replace('_', '-')}"
            raise UsageError(f"{shown} means nothing with {mode}")


def version_option(package: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add ``--version``, which names the version of `package` and of the container."""
    return click.version_option(
        package_name=package, message="%(prog)s %(version)s, container version 3"
    )
