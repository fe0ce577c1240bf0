"""What the commands share that make a new artifact out of a finished one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from ninfer_format.commandline import (
    SIZE,
    Progress,
    Terminal,
    format_bytes,
    refuse_existing,
    refuse_inputs_as_outputs,
)
from ninfer_format.commandline.printable import printable
from ninfer_format.container.json_text import is_text
from ninfer_format.errors import FileLimitError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

FIRST_PART = ".part-0001"
"""What the name of an artifact's first continuation file adds to the name of its entry."""


def source_argument(function: Command) -> Command:
    """Add the argument ``IN.ninfer``."""
    return click.argument("source", type=click.Path(path_type=Path), metavar="IN.ninfer")(function)


def output_argument(function: Command) -> Command:
    """Add the argument ``OUT.ninfer``."""
    return click.argument("output", type=click.Path(path_type=Path), metavar="OUT.ninfer")(function)


def max_file_bytes_option(function: Command) -> Command:
    """Add the option ``--max-file-bytes`` with the default of a conversion."""
    return click.option(
        "--max-file-bytes",
        type=SIZE,
        default=32_000_000_000,
        show_default=True,
        help="Longest file; more goes to OUT.ninfer.part-0001 and so on.",
    )(function)


def force_option(function: Command) -> Command:
    """Add the option ``--force``."""
    return click.option("--force", is_flag=True, help="Replace an existing OUT.ninfer.")(function)


@contextmanager
def new_artifact(
    output: Path,
    *,
    inputs: Sequence[Path],
    force: bool,
    num_bytes: int,
    max_file_bytes: int,
) -> Iterator[Path]:
    """Let an artifact be made out of sight, and publish it with all its files at the end.

    Args:
        output: The entry file to be.
        inputs: All files that are read; none of them may be written.
        force: Replace an existing output.
        num_bytes: About how long the artifact will be.
        max_file_bytes: Limit for the length of each file.

    Yields:
        The path to write the entry to. After an exception nothing remains.

    Raises:
        UsageError: The output or a report about it exists, or is an input, the output has no
            usable name, or the limit for a file is too small.
        DiskSpaceError: The disk is too small.
    """
    from ninfer_quant.pipeline import staging

    # What is left of an old set is found now, not after hours of copying.
    parts = [FIRST_PART] if num_bytes > max_file_bytes else []
    beside = [*parts, *staging.REPORT_SUFFIXES]
    _check_output(output, inputs, force=force, beside=beside)
    staging.check_disk_space(output, num_bytes)
    with staging.disk_full_as_error(output), staging.staging_folder(output) as folder:
        entry = folder / output.name
        with _limit_as_usage_error():
            yield entry
        names = sorted(path.name for path in folder.iterdir() if path != entry)
        outputs = [output.with_name(name) for name in (*names, entry.name)]
        refuse_inputs_as_outputs(outputs, inputs)
        staging.publish(folder, [path.name for path in outputs], output, force=force)


def _check_output(
    output: Path, inputs: Sequence[Path], *, force: bool, beside: Sequence[str]
) -> None:
    from ninfer_quant.pipeline import staging

    if output.name in ("", ".."):
        raise UsageError(f"{str(output)!r} names no file", hint="for example model.ninfer")
    if not is_text(str(output)):
        raise UsageError(f"{str(output)!r} is not UTF-8", hint="choose another name")
    outputs = [output, *(output.with_name(output.name + end) for end in beside)]
    staging.refuse_impossible_names(outputs)
    refuse_inputs_as_outputs(outputs, inputs)
    for path in outputs:
        refuse_existing(path, force=force)


@contextmanager
def _limit_as_usage_error() -> Iterator[None]:
    try:
        yield
    except FileLimitError as error:
        raise UsageError(
            f"--max-file-bytes {error.limit} is too small: header and directory leave no room",
            hint=f"give at least {error.smallest}",
        ) from error


@contextmanager
def shown_work(terminal: Terminal, description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress once something was done; what is refused at the start shows none.

    Args:
        terminal: Where and how to show it.
        description: What is being done, for example ``copying``.
        total: Bytes of the whole work.

    Yields:
        A function that counts bytes as done.
    """
    begun: list[Progress] = []
    with ExitStack() as stack:

        def advance(num_bytes: int) -> None:
            if not begun:
                bar = Progress(terminal, description, total=total, unit="bytes")
                begun.append(stack.enter_context(bar))
            begun[0].advance(num_bytes)

        yield advance


def report_new_artifact(terminal: Terminal, output: Path, **details: Any) -> None:
    """Say what was written; with ``--json`` as a document, with `details` at its end."""
    from ninfer_format import open_artifact

    with open_artifact(output) as artifact:
        directory = artifact.directory
        terminal.note(
            f"wrote {printable(str(output))}: {format_bytes(artifact.payload_bytes)} in "
            f"{len(directory.objects)} objects"
        )
        if not terminal.json:
            return
        names = [path.name for path in artifact.file_paths]
        document = {
            "output": str(output),
            "name": artifact.name,
            "artifact_id": artifact.artifact_id.hex(),
            "components": list(directory.components),
            "parameters": len(directory.bindings),
            "uses": len(directory.uses),
            "objects": len(directory.objects),
            "payload_bytes": artifact.payload_bytes,
            "files": [
                {"path": name, "payload_bytes": file.payload_bytes}
                for name, file in zip(names, directory.files, strict=True)
            ],
        }
    terminal.print_json(document | details)
