"""The summary of a file as tables for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from ninfer_format.commandline import Terminal
from ninfer_format.commandline.printable import printable
from ninfer_format.commandline.sizes import format_bytes
from ninfer_format.inspect.pictures import bar

_BAR_WIDTH = 12
_ANY_WIDTH = 10_000
"""Wider than any table: what does not fit on a terminal is wrapped by it, not cut off."""


def print_table(terminal: Terminal, table: Table) -> None:
    """Print a table on stdout, as wide as it is."""
    terminal.out.print()
    terminal.out.width = _ANY_WIDTH
    terminal.out.print(table)


def overview_lines(document: dict[str, Any]) -> Iterator[str]:
    """Names and counts of a summary document, one to a line."""
    artifact = document["kind"] == "ninfer"
    rows = {"path": document["path"]}
    if artifact:
        rows["container"] = f"version {document['version']}"
        rows["artifact id"] = document["artifact_id"]
    else:
        rows["kind"] = _kind(document)
    rows |= {
        "name": document["name"] or "(none)",
        "architecture": document["architecture"] or "(not named)",
        "files": f"{document['files']}, {_size(document['file_bytes'])}",
        "payload" if artifact else "tensors' bytes": _size(document["payload_bytes"]),
    }
    if artifact:
        rows["objects"] = (
            f"{document['objects']} ({document['tensors']} tensors, "
            f"{document['resources']} resources)"
        )
        rows["bindings"] = f"{document['bindings']:,}"
        rows["uses"] = f"{document['uses']:,}"
    else:
        rows["tensors"] = f"{document['tensors']:,}"
    rows["parameters"] = f"{document['parameters']:,}"
    rows["bits per weight"] = f"{document['bits_per_weight']:.2f}"
    for name, value in rows.items():
        yield f"{name:<17}{printable(value)}"


def shares_table(title: str, shares: dict[str, dict[str, Any]], encoding: str) -> Table:
    """Counts and bytes of the tensors by format or layout, with a bar for each.

    Args:
        title: Heading of the first column.
        shares: A member of the summary document.
        encoding: What the table will be encoded in.
    """
    table = _table(title)
    for heading in ("tensors", "elements", "size", "share", "bits"):
        table.add_column(heading, justify="right")
    table.add_column("")
    largest = max((share["share"] for share in shares.values()), default=0.0)
    for name, share in shares.items():
        elements = share["elements"]
        table.add_row(
            _text(name),
            str(share["tensors"]),
            f"{elements:,}",
            format_bytes(share["bytes"]),
            f"{share['share']:.1%}",
            f"{8 * share['bytes'] / elements:.2f}" if elements else "-",
            Text(bar(share["share"] / largest if largest else 0.0, _BAR_WIDTH, encoding), "cyan"),
        )
    return table


def components_table(document: dict[str, Any]) -> Table:
    """The components with their architecture, target, size and resources."""
    table = _table("component", "architecture", "target")
    table.add_column("objects", justify="right")
    table.add_column("size", justify="right")
    table.add_column("resources")
    for name, component in document["components"].items():
        roles = [*component["resources"]]
        if component["proposal"] is not None:
            roles.append(f"({component['proposal']['domain']} proposal head)")
        table.add_row(
            _text(name),
            _text(component["architecture"] or "-"),
            _text(component["target"] or "-"),
            str(component["objects"]),
            format_bytes(component["bytes"]),
            _text(", ".join(roles) or "-"),
        )
    if document["unassigned_objects"]:
        table.add_row("(no component)", "-", "-", str(document["unassigned_objects"]), "", "")
    return table


def _table(*headings: str) -> Table:
    return Table(*headings, box=None, pad_edge=False, header_style="bold")


def _kind(document: dict[str, Any]) -> str:
    names = {"gguf": "GGUF", "safetensors": "Safetensors"}
    version = "" if document["version"] is None else f", version {document['version']}"
    return f"{names[document['kind']]}{version}"


def _size(num_bytes: int) -> str:
    text = format_bytes(num_bytes)
    return text if text.endswith("bytes") else f"{text} ({num_bytes:,} bytes)"


def _text(text: str) -> Text:
    """A cell that is shown as it is, without markup."""
    return Text(printable(text))
