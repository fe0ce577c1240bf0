"""``ninfer-convert split``: the same artifact in files of another length."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer_format.commandline import SIZE, Terminal, common_options
from ninfer_quant.cli.new_artifact import (
    force_option,
    new_artifact,
    output_argument,
    report_new_artifact,
    shown_work,
    source_argument,
)
from ninfer_quant.cli.schema import SCHEMA


@click.command(
    short_help="Cut an artifact into files of another length.",
    epilog="""\b
Examples:
  ninfer-convert split in.ninfer out.ninfer --max-file-bytes 4095MiB
  ninfer-convert split in.ninfer whole.ninfer --max-file-bytes 1TiB""",
)
@source_argument
@output_argument
@click.option(
    "--max-file-bytes",
    type=SIZE,
    required=True,
    help="Longest file; more goes to OUT.ninfer.part-0001 and so on.",
)
@force_option
@common_options(SCHEMA)
def split(terminal: Terminal, source: Path, output: Path, max_file_bytes: int, force: bool) -> None:
    """Write IN.ninfer as OUT.ninfer with another limit for the length of its files.

    A limit that is large enough puts an artifact of several files into one. Weights stay as they
    are, byte for byte.
    """
    from ninfer_format import open_artifact, split_artifact

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
            split_artifact(artifact, entry, max_file_bytes, advance=advance)
    report_new_artifact(terminal, output)
