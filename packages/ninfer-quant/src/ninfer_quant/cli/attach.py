"""``ninfer-convert attach``: a component of another artifact."""

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
    short_help="Add a component of another artifact.",
    epilog="""\b
Examples:
  ninfer-convert attach in.ninfer donor.ninfer out.ninfer --component dflash2
  ninfer-convert attach text.ninfer full.ninfer out.ninfer --component vision""",
)
@source_argument
@click.argument("donor", type=click.Path(path_type=Path), metavar="DONOR.ninfer")
@output_argument
@click.option(
    "--component",
    required=True,
    metavar="ID",
    help="Component of DONOR.ninfer, for example dflash2.",
)
@max_file_bytes_option
@force_option
@common_options(SCHEMA)
def attach(
    terminal: Terminal,
    source: Path,
    donor: Path,
    output: Path,
    component: str,
    max_file_bytes: int,
    force: bool,
) -> None:
    """Write IN.ninfer and a component of DONOR.ninfer as OUT.ninfer.

    Both must be the same model with the same tokenizer; their formats may differ. Nothing is
    encoded anew: the SHA-256 of every object is compared with its source, and written to a report
    OUT.ninfer.attach.json.
    """
    from ninfer_format import attach_component, open_artifact
    from ninfer_format.edit.attach import REPORT_SUFFIX
    from ninfer_format.edit.attachment import plan_attachment

    output = output.expanduser()
    if not is_text(donor.name):
        # The new artifact names it in its provenance.
        raise UsageError(f"{str(donor)!r} is not UTF-8", hint="rename it")
    with open_artifact(source.expanduser()) as base, open_artifact(donor.expanduser()) as giver:
        attachment = plan_attachment(base, giver, component)
        with (
            new_artifact(
                output,
                inputs=[*base.file_paths, *giver.file_paths],
                force=force,
                num_bytes=base.file_bytes + attachment.copied_bytes,
                max_file_bytes=max_file_bytes,
            ) as entry,
            shown_work(terminal, "attaching", attachment.work_bytes) as advance,
        ):
            attach_component(
                base,
                giver,
                entry,
                component,
                max_file_bytes=max_file_bytes,
                advance=advance,
            )
    report_new_artifact(terminal, output, component=component, report=f"{output}{REPORT_SUFFIX}")
