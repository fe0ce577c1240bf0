"""``ninfer-convert rename``: another public name."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer_format.commandline import Terminal, common_options
from ninfer_format.container.json_text import is_text
from ninfer_format.errors import UsageError
from ninfer_quant.cli.new_artifact import (
    force_option,
    max_file_bytes_option,
    new_artifact,
    output_argument,
    report_new_artifact,
    shown_work,
    source_argument,
)
from ninfer_quant.cli.schema import SCHEMA


@click.command(
    short_help="Give an artifact another name.",
    epilog="""\b
Examples:
  ninfer-convert rename in.ninfer out.ninfer --name Qwen3.8-27B-Q4
  ninfer-convert rename in.ninfer out.ninfer --name mine --json""",
)
@source_argument
@output_argument
@click.option("--name", required=True, metavar="TEXT", help="The public model name.")
@max_file_bytes_option
@force_option
@common_options(SCHEMA)
def rename(
    terminal: Terminal, source: Path, output: Path, name: str, max_file_bytes: int, force: bool
) -> None:
    """Write IN.ninfer as OUT.ninfer under another model name, which servers show.

    Weights stay as they are, byte for byte.
    """
    from ninfer_format import open_artifact, rename_artifact

    if not name or not is_text(name):
        raise UsageError(f"--name {name!r} is no name")
    output = output.expanduser()
    with open_artifact(source.expanduser()) as artifact:
        total = artifact.payload_bytes
        with (
            new_artifact(
                output,
                inputs=artifact.file_paths,
                force=force,
                num_bytes=artifact.file_bytes,
                max_file_bytes=max_file_bytes,
            ) as entry,
            shown_work(terminal, "copying", total) as advance,
        ):
            rename_artifact(artifact, entry, name, max_file_bytes=max_file_bytes, advance=advance)
    report_new_artifact(terminal, output)
