"""Options whose faults are collected, so that a command can report all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

_PROBLEMS = f"{__name__}.problems"


class CheckedOption(click.Option):
    """An option whose wrong value does not end the command line's parsing; it counts as None."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Take the option's value, or note what is wrong with it."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            collected_problems(ctx).append(_one_line(error))
            if self.name is not None:
                ctx.params[self.name] = None
            return None, args


def collected_problems(ctx: click.Context) -> list[str]:
    """Return the list of what is wrong with the command line so far."""
    problems: list[str] = ctx.meta.setdefault(_PROBLEMS, [])
    return problems


def _one_line(error: click.BadParameter) -> str:
    message = " ".join(error.format_message().split()).removesuffix(".")
    return message[:1].lower() + message[1:]
