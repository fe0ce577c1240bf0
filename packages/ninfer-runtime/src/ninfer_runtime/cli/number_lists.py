"""Lists of numbers on the command line."""

from __future__ import annotations

from typing import Any

import click


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between them.

    Args:
        least: Smallest number.
        most: Largest number; None for no bound.
    """

    name = "numbers"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._range = click.IntRange(least, most)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """How help shows a value."""
        return "N[,N…]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Read the numbers of a text."""
        if isinstance(value, tuple):
            return value
        return tuple(self._range.convert(part.strip(), param, ctx) for part in value.split(","))


class Pairs(click.ParamType[tuple[tuple[int, int], ...]]):
    """Pairs of positive numbers: a comma inside each, semicolons between them."""

    name = "pairs"
    _numbers = Numbers(1)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """How help shows a value."""
        return "P,G[;P,G…]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int], ...]:
        """Read the pairs of a text."""
        if isinstance(value, tuple):
            return value
        return tuple(self._pair(part, param, ctx) for part in value.split(";"))

    def _pair(
        self, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        first, comma, second = text.partition(",")
        if not comma:
            self.fail(f"{text!r} is no pair such as 512,128", param, ctx)
        found, after = (self._numbers.convert(part, param, ctx) for part in (first, second))
        return found[0], after[0]
