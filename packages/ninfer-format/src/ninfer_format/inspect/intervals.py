"""``A:B`` on the command line: rows or columns from A up to B, B excluded."""

from __future__ import annotations

import re

import click

from ninfer_format.errors import UsageError

Interval = tuple[int, int | None]
"""Begin and end; None is the last one."""

_PATTERN = re.compile(r"([0-9]{0,18}):([0-9]{0,18})")


class IntervalType(click.ParamType[Interval]):
    """An option's value ``A:B``; without A from the first, without B to the last."""

    name = "a:b"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Interval:
        """Read `value`; anything else than an interval is a usage error."""
        if isinstance(value, tuple):
            return value
        match = _PATTERN.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not A:B with two row or column numbers")
        return int(match[1] or 0), int(match[2]) if match[2] else None


INTERVAL = IntervalType()


def resolve(interval: Interval | None, length: int, option: str) -> tuple[int, int]:
    """The interval that an option means on an axis.

    Args:
        interval: What was given, None if nothing.
        length: Length of the axis.
        option: Name of the option, for messages.

    Raises:
        UsageError: It is empty or outside the axis.
    """
    begin, end = interval or (0, None)
    end = length if end is None else end
    if not 0 <= begin < end <= length and interval is not None:
        raise UsageError(f"{option} {begin}:{end} is empty or outside 0:{length}")
    return begin, end
