"""Sizes in bytes as people write and read them."""

from __future__ import annotations

import re

import click

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_PATTERN = re.compile(r"([0-9]+)(KiB|MiB|GiB|TiB)?")


def format_bytes(num_bytes: int) -> str:
    """Write a number of bytes with three significant digits and a binary unit."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = _UNITS[unit]
        if num_bytes >= scale:
            amount = num_bytes / scale
            digits = 2 if amount < 10 else 1 if amount < 100 else 0
            return f"{amount:.{digits}f} {unit}"
    return f"{num_bytes} bytes"


class SizeType(click.ParamType[int]):
    """An option's value in bytes: plain digits, or digits and KiB, MiB, GiB or TiB."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read `value`; anything else than a size is a usage error."""
        if isinstance(value, int):
            return value
        match = _PATTERN.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not a size (digits, then nothing, KiB, MiB, GiB or TiB)")
        return int(match[1]) * _UNITS[match[2] or ""]


SIZE = SizeType()
