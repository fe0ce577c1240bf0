"""Opening a file and printing the view of it that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ninfer_format.commandline import Terminal
from ninfer_format.container.artifact import Artifact
from ninfer_format.errors import ExitCode, UsageError
from ninfer_format.inspect.checkpoint_summary import checkpoint_config
from ninfer_format.inspect.diff_view import print_differences
from ninfer_format.inspect.json_values import abbreviated
from ninfer_format.inspect.memory_view import print_memory
from ninfer_format.inspect.overview import print_overview
from ninfer_format.inspect.request import InspectRequest
from ninfer_format.inspect.resources import print_resource
from ninfer_format.inspect.selection import Selection
from ninfer_format.inspect.source import Source, kind_of, open_source
from ninfer_format.inspect.tensor_view import print_tensor
from ninfer_format.inspect.verify_view import print_verification
from ninfer_format.memory_estimate import MemoryRequest


def print_file(terminal: Terminal, file: Path, request: InspectRequest) -> ExitCode:
    """Print one view of a file.

    Returns:
        The exit code; not `OK` if a check found something.

    Raises:
        NInferError: The file cannot be read, or has no such view.
    """
    source = open_source(file)
    path = click.format_filename(file)
    if request.tensor is not None:
        print_tensor(terminal, path, source, request.tensor, request.rows, request.cols)
    elif request.config:
        _print_config(terminal, source)
    elif request.resource is not None:
        print_resource(terminal, _artifact(source, "--resource"), request.resource)
    elif request.verify:
        return print_verification(terminal, path, _artifact(source, "--verify"))
    elif request.diff is not None:
        first = _artifact(source, "--diff")
        other = request.diff.expanduser()
        second = _artifact(open_source(other), "--diff")
        return print_differences(terminal, path, first, click.format_filename(other), second)
    elif request.memory:
        wanted = MemoryRequest(request.max_context, request.slots or 1, request.kv_dtype)
        print_memory(terminal, path, _artifact(source, "--memory"), wanted)
    else:
        print_overview(terminal, path, source, request.lists, Selection(request.select))
    return ExitCode.OK


def _artifact(source: Source, option: str) -> Artifact:
    if isinstance(source, Artifact):
        return source
    raise UsageError(f"{option} is for .ninfer artifacts, not {kind_of(source)}", path=source.path)


def _print_config(terminal: Terminal, source: Source) -> None:
    if isinstance(source, Artifact):
        components = source.directory.components
        configs = {name: dict(component.config) for name, component in components.items()}
        document = {"config": configs}
        shown = configs
    else:
        document = checkpoint_config(source)
        shown = abbreviated(document)
    if terminal.json:
        terminal.print_json(document)
    else:
        click.echo(json.dumps(shown, ensure_ascii=False, indent=2))
