"""What ``--memory`` prints."""

from __future__ import annotations

import click

from ninfer_format.commandline import Terminal, format_bytes
from ninfer_format.commandline.printable import printable
from ninfer_format.container.artifact import Artifact
from ninfer_format.inspect.aligned import aligned
from ninfer_format.memory_estimate import MemoryEstimate, MemoryRequest, find_estimator


def print_memory(terminal: Terminal, path: str, artifact: Artifact, request: MemoryRequest) -> None:
    """Print what an engine would allocate for an artifact.

    Raises:
        EstimatorMissingError: No engine is installed.
        NInferError: The engine cannot run the artifact like this.
    """
    estimate = find_estimator()(artifact, request)
    if terminal.json:
        terminal.print_json(
            {
                "path": path,
                "device": estimate.device,
                "max_context": estimate.max_context,
                "slots": estimate.slots,
                "kv_dtype": estimate.kv_dtype,
                "items": [item.to_json() for item in estimate.items],
                "total_bytes": estimate.total_bytes,
                "loading_bytes": estimate.loading_bytes,
                "available_bytes": estimate.available_bytes,
                "notes": list(estimate.notes),
            }
        )
        return
    header = ("component", "purpose", "size", "detail")
    rows = [
        (item.component, item.purpose, _size(item.num_bytes), item.detail)
        for item in estimate.items
    ]
    for line in aligned(header, rows, numbers={"size"}):
        click.echo(line)
    click.echo()
    for line in _total_lines(estimate):
        click.echo(printable(line))


def _total_lines(estimate: MemoryEstimate) -> list[str]:
    rows = {
        "total": estimate.total_bytes,
        "while loading": estimate.loading_bytes,
        "available now": estimate.available_bytes,
    }
    lines = [f"{name:<15}{format_bytes(value)} ({estimate.device})" for name, value in rows.items()]
    return [*lines, *(f"note: {note}" for note in estimate.notes)]


def _size(num_bytes: int | None) -> str:
    return "?" if num_bytes is None else format_bytes(num_bytes)
