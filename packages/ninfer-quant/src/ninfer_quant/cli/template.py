"""``ninfer-convert template``: another chat template."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer_format.commandline import Terminal, common_options
from ninfer_quant.cli.new_artifact import (
    force_option,
    max_file_bytes_option,
    output_argument,
    source_argument,
)
from ninfer_quant.cli.resource import write_with_resource
from ninfer_quant.cli.schema import SCHEMA

CHAT_TEMPLATE = "text/chat_template.jinja"


@click.command(
    short_help="Replace the stored chat template.",
    epilog="""\b
Examples:
  ninfer-convert template in.ninfer out.ninfer --file chat.jinja
  ninfer-convert template in.ninfer out.ninfer --file chat.jinja --force""",
)
@source_argument
@output_argument
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="T.jinja",
    help="The new chat template.",
)
@max_file_bytes_option
@force_option
@common_options(SCHEMA)
def template(
    terminal: Terminal, source: Path, output: Path, file: Path, max_file_bytes: int, force: bool
) -> None:
    """Write IN.ninfer as OUT.ninfer with another chat template, which has to compile.

    Weights stay as they are, byte for byte.
    """
    write_with_resource(
        terminal, source, output, CHAT_TEMPLATE, file, max_file_bytes=max_file_bytes, force=force
    )
