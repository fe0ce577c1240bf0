"""Lenient or strict: what becomes of fields that this server accepts but gives no effect."""

from __future__ import annotations

import re

from ninfer_server.errors import ApiError
from ninfer_server.settings import CompatibilityMode

IGNORED_HEADER = "x-ninfer-ignored"

_INDEX = re.compile(r"\[\d+\]")


class Compatibility:
    """Collects, for one request, the fields that had no effect.

    Args:
        mode: ``strict`` refuses such a field instead.
    """

    def __init__(self, mode: CompatibilityMode) -> None:
        self._mode = mode
        self._ignored: list[str] = []

    def ignore(self, field: str, *, otherwise: ApiError) -> None:
        """Record that `field` has no effect.

        Args:
            field: Its place in the request. Positions in lists are left out of the report, whose
                length then does not grow with the request.
            otherwise: The refusal of strict mode.

        Raises:
            ApiError: `otherwise`, in strict mode.
        """
        if self._mode == "strict":
            raise otherwise
        name = _INDEX.sub("", field)
        if name not in self._ignored:
            self._ignored.append(name)

    def headers(self) -> dict[str, str]:
        """Return the header that tells the client, if there is something to tell."""
        return {IGNORED_HEADER: ",".join(self._ignored)} if self._ignored else {}
