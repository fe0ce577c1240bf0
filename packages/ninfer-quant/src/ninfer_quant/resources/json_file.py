"""Reading, checking and rewriting a JSON resource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ninfer_format.container.json_text import parse_json
from ninfer_format.errors import ArtifactError
from ninfer_quant.errors import ConversionError


@dataclass(frozen=True, slots=True)
class Change:
    """How a stored resource differs from its file.

    Attributes:
        message: One line that starts with the role.
        is_expected: Files of the family are known to need it; otherwise a person should look.
    """

    message: str
    is_expected: bool = True


@dataclass(frozen=True, slots=True)
class ResourceFile:
    """One resource: its bytes and what messages call it.

    Attributes:
        role: Role in the artifact, for example ``tokenizer.json``.
        path: File that it came from, as the user gave it.
        data: The bytes.
    """

    role: str
    path: str
    data: bytes

    def parse(self) -> dict[str, Any]:
        """Parse the bytes as a JSON object.

        Raises:
            ConversionError: It is not UTF-8, not JSON, names a member twice, or is not an object.
        """
        try:
            value = parse_json(self.data, what="resource")
        except ArtifactError as error:
            raise ConversionError(str(error), path=self.path) from error
        if not isinstance(value, dict):
            raise ConversionError("must be a JSON object", path=self.path)
        return value

    def refuse(self, key: str, found: object, expected: str) -> NoReturn:
        """Raise `ConversionError` for the member `key`, with dots for nesting."""
        raise ConversionError(
            f"{key} = {found!r} is not supported (expected {expected})", path=self.path
        )

    def require(self, holder: Mapping[str, Any], key: str, value: object) -> None:
        """Check that ``holder[key]`` is `value`, its type included."""
        found = holder.get(key)
        if found != value or type(found) is not type(value):
            self.refuse(key, found, json.dumps(value))


def dump_json(value: Mapping[str, Any]) -> bytes:
    """Write a resource the way tokenizer files usually look: indented, text unescaped."""
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False).encode("utf-8")
