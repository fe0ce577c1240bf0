"""``ninfer-convert resource``: another file for one role."""

from __future__ import annotations

from pathlib import Path

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


@click.command(
    short_help="Replace a stored resource.",
    epilog="""\b
Examples:
  ninfer-convert resource in.ninfer out.ninfer \\
      --role generation_config.json --file generation_config.json
  ninfer-convert resource in.ninfer out.ninfer \\
      --role vision/preprocessor_config.json --file pixels.json""",
)
@source_argument
@output_argument
@click.option(
    "--role",
    required=True,
    metavar="ROLE",
    help="For example generation_config.json, or COMPONENT/ROLE.",
)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The new bytes.",
)
@max_file_bytes_option
@force_option
@common_options(SCHEMA)
def resource(
    terminal: Terminal,
    source: Path,
    output: Path,
    role: str,
    file: Path,
    max_file_bytes: int,
    force: bool,
) -> None:
    """Write IN.ninfer as OUT.ninfer with another file as one of its resources.

    A chat template has to compile, and a file with a name in .json to be a JSON object. Weights
    stay as they are, byte for byte.
    """
    write_with_resource(
        terminal, source, output, role, file, max_file_bytes=max_file_bytes, force=force
    )


def write_with_resource(
    terminal: Terminal,
    source: Path,
    output: Path,
    name: str,
    file: Path,
    *,
    max_file_bytes: int,
    force: bool,
) -> None:
    """Replace the resource `name`, a role or component and role, by a file."""
    from ninfer_format import open_artifact, replace_resource
    from ninfer_format.edit.resource import replaced_payload_bytes
    from ninfer_format.inspect.resources import find_resource
    from ninfer_quant.resources.replacement import read_replacement

    output, file = output.expanduser(), file.expanduser()
    with open_artifact(source.expanduser()) as artifact:
        component, role = find_resource(artifact, name)
        data = read_replacement(role, file)
        total = replaced_payload_bytes(artifact, component, role, data)
        with (
            new_artifact(
                output,
                inputs=[*artifact.file_paths, file],
                force=force,
                num_bytes=artifact.file_bytes + len(data),
                max_file_bytes=max_file_bytes,
            ) as entry,
            shown_work(terminal, "copying", total) as advance,
        ):
            replace_resource(
                artifact,
                entry,
                component,
                role,
                data,
                max_file_bytes=max_file_bytes,
                advance=advance,
            )
    report_new_artifact(terminal, output, resource=f"{component}/{role}", resource_bytes=len(data))
