"""Which names of the lists the user wants to see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile

from ninfer_format.errors import UsageError


class Selection:
    """A shell glob over full names, case-sensitive; without one every name is wanted.

    Args:
        pattern: The glob, or None.
    """

    def __init__(self, pattern: str | None) -> None:
        self.pattern = pattern

    def __contains__(self, name: str) -> bool:
        """Whether `name` is wanted."""
        return self.pattern is None or fnmatchcase(name, self.pattern)

    def check(self, names: Iterable[str]) -> None:
        """Refuse a glob that none of `names` matches.

        Raises:
            UsageError: With the name that is most like the glob.
        """
        names = list(names)
        if self.pattern is None or any(name in self for name in names):
            return
        hint = f"the nearest is {_nearest(self.pattern, names)}" if names else None
        raise UsageError(f"--select {self.pattern!r} matches nothing", hint=hint)


def _nearest(pattern: str, names: Sequence[str]) -> str:
    """The name that begins and ends most like the pattern."""

    def likeness(name: str) -> int:
        begin = _common_prefix(pattern, name)
        return begin + _common_prefix(pattern[:begin:-1], name[:begin:-1])

    return max(names, key=likeness)


def _common_prefix(first: str, second: str) -> int:
    """How many characters two strings begin with in common."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )
