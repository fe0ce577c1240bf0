"""What a version 1 or 2 file lacks: components, bindings and uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_format.container.checks import parse_directory
from ninfer_format.container.framing import MAX_JSON_BYTES
from ninfer_format.container.json_text import parse_json
from ninfer_format.container.json_values import Members
from ninfer_format.container.schema import Binding, Component, Use
from ninfer_format.errors import ArtifactError
from ninfer_format.legacy.directory import LegacyDirectory

_TABLE = Members("table", "components bindings uses")


@dataclass(frozen=True, slots=True)
class BindingTable:
    """How the objects of a file are to be understood; as in a version 3 directory."""

    components: Mapping[str, Component]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]


def parse_table(text: bytes, directory: LegacyDirectory) -> BindingTable:
    """Read a table that a user wrote for a file of unknown identity.

    Args:
        text: A JSON object with exactly the members `components`, `bindings` and `uses`, each as
            in a version 3 directory; object ids are the names in the file.
        directory: What the table is for.

    Raises:
        ArtifactError: `json`, `schema` or `reference`, as the version 3 reader would report it.
    """
    if len(text) > MAX_JSON_BYTES:
        raise ArtifactError(
            "json", "table is too long", expected=f"at most {MAX_JSON_BYTES} bytes", found=len(text)
        )
    root = _TABLE.of(parse_json(text, what="table"))
    files: list[dict[str, Any]] = [{"path": None, "payload_bytes": directory.objects[-1].end}]
    objects = [record.to_json() for record in directory.objects]
    parsed = parse_directory({**root, "objects": objects, "files": files}, entry_name="")
    return BindingTable(parsed.components, parsed.bindings, parsed.uses)
