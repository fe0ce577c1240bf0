"""The summary of an artifact as tables for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from ninfer_format.commandline.printable import printable
from ninfer_format.commandline.sizes import format_bytes


def overview_lines(document: dict[str, Any]) -> Iterator[str]:
    """Names and counts of a summary document, one to a line."""
    rows = {
        "path": document["path"],
        "container": f"version {document['version']}",
        "artifact id": document["artifact_id"],
        "name": document["name"] or "(none)",
        "architecture": document["architecture"] or "(not named)",
        "files": f"{document['files']}, {_size(document['file_bytes'])}",
        "payload": _size(document["payload_bytes"]),
        "objects": f"{document['objects']} ({document['tensors']} tensors, "
        f"{document['resources']} resources)",
        "bindings": f"{document['bindings']:,}",
        "uses": f"{document['uses']:,}",
        "parameters": f"{document['parameters']:,}",
        "bits per weight": f"{document['bits_per_weight']:.2f}",
    }
    for name, value in rows.items():
        yield f"{name:<17}{printable(value)}"


def shares_table(title: str, shares: dict[str, dict[str, Any]]) -> Table:
    """Counts and bytes of the tensors by format or layout.

    Args:
        title: Heading of the first column.
        shares: A member of the summary document.
    """
    table = Table(title, box=None, pad_edge=False, header_style="bold")
    for heading in ("tensors", "elements", "size", "share", "bits/element"):
        table.add_column(heading, justify="right")
    for name, share in shares.items():
        table.add_row(
            _text(name),
            str(share["tensors"]),
            f"{share['elements']:,}",
            format_bytes(share["bytes"]),
            f"{share['share']:.1%}",
            f"{8 * share['bytes'] / share['elements']:.2f}",
        )
    return table


def components_table(components: dict[str, dict[str, Any]]) -> Table:
    """The components with their architecture, target and resources."""
    table = Table(
        "component",
        "architecture",
        "target",
        "resources",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for name, component in components.items():
        roles = [*component["resources"]]
        if component["proposal"] is not None:
            roles.append(f"({component['proposal']['domain']} proposal head)")
        table.add_row(
            _text(name),
            _text(component["architecture"] or "-"),
            _text(component["target"] or "-"),
            _text(", ".join(roles) or "-"),
        )
    return table


def _size(num_bytes: int) -> str:
    text = format_bytes(num_bytes)
    return text if text.endswith("bytes") else f"{text} ({num_bytes:,} bytes)"


def _text(text: str) -> Text:
    """A cell that is shown as it is, without markup."""
    return Text(printable(text))
