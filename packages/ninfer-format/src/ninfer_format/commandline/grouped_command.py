"""A click command whose help lists its options under headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

_REST = "Common"


class GroupedCommand(click.Command):
    """A command with headings in its help.

    Args:
        headings: Names of parameters by heading, in the order of the help; the options that no
            heading names come last.
        **kwargs: As for `click.Command`.
    """

    def __init__(self, *, headings: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._headings = headings

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each heading."""
        records = {
            parameter.name: record
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
            and (record := parameter.get_help_record(ctx)) is not None
        }
        for heading, names in self._headings.items():
            with formatter.section(heading):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section(_REST):
            formatter.write_dl(list(records.values()))
