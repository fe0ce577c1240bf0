"""What ``--diff`` prints."""

from __future__ import annotations

import click

from ninfer_format.commandline import Progress, Terminal, format_bytes
from ninfer_format.comparison.artifact_comparison import ArtifactComparison
from ninfer_format.container.artifact import Artifact
from ninfer_format.errors import ExitCode
from ninfer_format.inspect.aligned import aligned
from ninfer_format.workers import worker_count

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def print_differences(
    terminal: Terminal, path: str, first: Artifact, other_path: str, second: Artifact
) -> ExitCode:
    """Compare two artifacts and list all differences.

    Returns:
        The exit code: `FAILED` if they differ.
    """
    comparison = ArtifactComparison(first, second)
    with Progress(terminal, "comparing", total=comparison.total_bytes, unit="bytes") as progress:
        differences = comparison.run(jobs=worker_count(), advance=progress.advance)
    if terminal.json:
        terminal.print_json(
            {
                "path": path,
                "other": other_path,
                "equal": not differences,
                "compared_bytes": comparison.total_bytes,
                "differences": [difference.to_json() for difference in differences],
            }
        )
    elif not differences:
        click.echo(f"equal: directory and {format_bytes(comparison.total_bytes)} of objects")
    else:
        header = ("", "section", "name", "detail")
        rows = [(_SIGNS[d.change], d.section, d.name, d.detail) for d in differences]
        for line in aligned(header, rows):
            click.echo(line)
    return ExitCode.FAILED if differences else ExitCode.OK
