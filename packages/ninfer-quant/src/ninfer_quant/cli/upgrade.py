"""``ninfer-convert upgrade``: a file of container version 1 or 2 as version 3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ninfer_format.commandline import Terminal, common_options
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

if TYPE_CHECKING:
    from ninfer_format import BindingTable, LegacyArtifact


@click.command(
    short_help="Bring a file of container version 1 or 2 to version 3.",
    epilog="""\b
Examples:
  ninfer-convert upgrade old.ninfer new.ninfer
  ninfer-convert upgrade old.ninfer new.ninfer --chat-template chat.jinja
  ninfer-convert upgrade mine.ninfer new.ninfer --table mine.json""",
)
@source_argument
@output_argument
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Jinja file to store instead of the chat template of IN.ninfer.",
)
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON with the members components, bindings and uses of a version 3 directory, for a "
    "model that was not published.",
)
@max_file_bytes_option
@force_option
@common_options(SCHEMA)
def upgrade(
    terminal: Terminal,
    source: Path,
    output: Path,
    chat_template: Path | None,
    table: Path | None,
    max_file_bytes: int,
    force: bool,
) -> None:
    """Write IN.ninfer, of container version 1 or 2, as OUT.ninfer of version 3.

    Stored values and formats stay as they are, byte for byte.
    """
    from ninfer_format import open_legacy, upgrade_artifact
    from ninfer_quant.resources.replacement import CHAT_TEMPLATE_ROLE, read_replacement

    source, output = source.expanduser(), output.expanduser()
    given = [path.expanduser() for path in (chat_template, table) if path is not None]
    template = (
        None
        if chat_template is None
        else read_replacement(CHAT_TEMPLATE_ROLE, chat_template.expanduser())
    )
    with open_legacy(source) as legacy:
        binding_table = _table(legacy, table)
        total = legacy.payload.num_bytes + len(template or b"")
        with (
            new_artifact(
                output,
                inputs=[source, *given],
                force=force,
                num_bytes=total,
                max_file_bytes=max_file_bytes,
            ) as entry,
            shown_work(terminal, "upgrading", total) as advance,
        ):
            upgrade_artifact(
                legacy,
                entry,
                binding_table,
                chat_template=template,
                max_file_bytes=max_file_bytes,
                advance=advance,
            )
        version = legacy.directory.version
    report_new_artifact(terminal, output, upgraded_from_version=version)


def _table(legacy: LegacyArtifact, path: Path | None) -> BindingTable:
    from ninfer_format import parse_table, published_table
    from ninfer_format.container.framing import MAX_JSON_BYTES
    from ninfer_format.container.location import located

    if path is None:
        with located(legacy.path):
            return published_table(legacy.directory)
    path = path.expanduser()
    with path.open("rb") as file, located(path):
        # One byte more than a table may have is enough to know that it is too long.
        return parse_table(file.read(MAX_JSON_BYTES + 1), legacy.directory)
