"""Lenient or strict: what becomes of fields that this server accepts but gives no effect."""

from __future__ import annotations

from ninfer_server.errors import ApiError
from ninfer_server.settings import CompatibilityMode

IGNORED_HEADER = "x-ninfer-ignored"


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

        Raises:
            ApiError: `otherwise`, in strict mode.
        """
        if self._mode == "strict":
            raise otherwise
        if field not in self._ignored:
            self._ignored.append(field)

    def headers(self) -> dict[str, str]:
        """Return the header that tells the client, if there is something to tell."""
        return {IGNORED_HEADER: ",".join(self._ignored)} if self._ignored else {}
