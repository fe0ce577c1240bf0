"""A command that takes a file, unless its first word is the name of its subcommand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ninfer_format.commandline import GroupedCommand


class CommandWithSubcommand(GroupedCommand):
    """A command whose first argument is a file, and that has one subcommand.

    Args:
        subcommand: The subcommand; a file of its name is reached with a path, such as ``./name``.
        headings: As for `GroupedCommand`.
        **kwargs: As for `click.Command`.
    """

    def __init__(
        self, *, subcommand: click.Command, headings: Mapping[str, Sequence[str]], **kwargs: Any
    ) -> None:
        super().__init__(headings=headings, **kwargs)
        self._subcommand = subcommand

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the command line; the context says whose it is."""
        subcommand = self._subcommand
        if args[:1] == [subcommand.name]:
            name = f"{info_name} {subcommand.name}"
            return subcommand.make_context(name, args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run whichever command the context belongs to."""
        if ctx.command is not self:
            return ctx.command.invoke(ctx)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and a line about the subcommand."""
        super().format_options(ctx, formatter)
        with formatter.section("Commands"):
            help_text = self._subcommand.get_short_help_str(limit=60)
            formatter.write_dl([(str(self._subcommand.name), help_text)])
