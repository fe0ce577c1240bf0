"""Files of token ids."""

from __future__ import annotations

from pathlib import Path

from ninfer_format.errors import UsageError


def read_token_ids(path: Path, public_tokens: int) -> list[int]:
    """Read a JSON array of token ids.

    Args:
        path: The file, UTF-8.
        public_tokens: Ids below this exist.

    Raises:
        UsageError: It is not such an array.
    """
    from ninfer_runtime.text.json_values import read_json

    try:
        values = read_json(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error.reason} at byte {error.start}", path=path) from None
    except ValueError as error:
        raise UsageError(f"not JSON: {error}", path=path) from None
    if not isinstance(values, list):
        raise UsageError("expected a JSON array of token ids", path=path)
    last = public_tokens - 1
    for position, value in enumerate(values):
        is_id = isinstance(value, int) and not isinstance(value, bool)
        if not is_id or not 0 <= value <= last:
            raise UsageError(
                f"position {position}: expected a token id in 0..{last}, found {value!r:.40}",
                path=path,
            )
    return values
