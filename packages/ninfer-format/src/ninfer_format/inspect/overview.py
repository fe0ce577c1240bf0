"""What ``ninfer-inspect FILE`` prints: the summary, and the lists that were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ninfer_format.checkpoint.open_checkpoint import Checkpoint
from ninfer_format.commandline import Terminal
from ninfer_format.container.artifact import Artifact
from ninfer_format.errors import UsageError
from ninfer_format.inspect import tables
from ninfer_format.inspect.checkpoint_records import tensor_lines, tensor_records
from ninfer_format.inspect.checkpoint_summary import checkpoint_document
from ninfer_format.inspect.records import ArtifactLists
from ninfer_format.inspect.selection import Selection
from ninfer_format.inspect.source import Source
from ninfer_format.inspect.summary import summary_document


def print_overview(
    terminal: Terminal, path: str, source: Source, lists: Sequence[str], selection: Selection
) -> None:
    """Print summary and lists.

    Args:
        terminal: Where and how.
        path: The file as the user wrote it.
        source: The open file.
        lists: Names of the lists.
        selection: Which of their entries.

    Raises:
        UsageError: The file has no such list, or nothing in the lists is selected.
    """
    if isinstance(source, Artifact):
        _print_artifact(terminal, path, source, lists, selection)
    else:
        _print_checkpoint(terminal, path, source, lists, selection)


def _print_artifact(
    terminal: Terminal, path: str, artifact: Artifact, lists: Sequence[str], selection: Selection
) -> None:
    shown = ArtifactLists(artifact, selection)
    selection.check(name for kind in lists for name in shown.names(kind))
    document = summary_document(path, artifact)
    if terminal.json:
        for kind in lists:
            document |= shown.records(kind)
        terminal.print_json(document)
        return
    _print_summary(terminal, document)
    for kind in lists:
        click.echo()
        for line in shown.lines(kind):
            click.echo(line)


def _print_checkpoint(
    terminal: Terminal,
    path: str,
    checkpoint: Checkpoint,
    lists: Sequence[str],
    selection: Selection,
) -> None:
    absent = [f"--{name}" for name in lists if name != "objects"]
    if absent:
        raise UsageError(f"only artifacts have {', '.join(absent)}", path=path)
    if lists:
        selection.check(checkpoint.names)
    document = checkpoint_document(path, checkpoint)
    if terminal.json:
        if lists:
            document["object_records"] = tensor_records(checkpoint, selection)
        terminal.print_json(document)
        return
    _print_summary(terminal, document)
    if lists:
        click.echo()
        for line in tensor_lines(checkpoint, selection):
            click.echo(line)


def _print_summary(terminal: Terminal, document: dict[str, Any]) -> None:
    for line in tables.overview_lines(document):
        click.echo(line)
    for title, member in (("format", "formats"), ("layout", "layouts")):
        if document.get(member):
            encoding = terminal.out.encoding
            tables.print_table(terminal, tables.shares_table(title, document[member], encoding))
    if "components" in document:
        tables.print_table(terminal, tables.components_table(document))
