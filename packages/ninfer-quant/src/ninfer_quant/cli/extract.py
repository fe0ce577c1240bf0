"""``ninfer-convert extract``: a resource of an artifact as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ninfer_format.commandline import Terminal, common_options, new_output
from ninfer_format.errors import UsageError
from ninfer_quant.cli.schema import SCHEMA

if TYPE_CHECKING:
    from ninfer_format import Artifact


@click.command(short_help="Write a stored resource to a file.")
@click.argument("artifact", type=click.Path(path_type=Path), metavar="IN.ninfer")
@click.option("--resource", required=True, metavar="ROLE", help="For example tokenizer.json.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it; must not exist.  [default: stdout]",
)
@common_options(SCHEMA)
def extract(terminal: Terminal, artifact: Path, resource: str, output: Path | None) -> None:
    """Write a resource of IN.ninfer to a file or to stdout, byte for byte."""
    from ninfer_format import open_artifact

    if terminal.json and output is None:
        raise UsageError("--json needs -o FILE, because stdout is the resource otherwise")
    with open_artifact(artifact.expanduser()) as opened:
        data = _read(opened, resource)
    if output is None:
        click.echo(data, nl=False)
        return
    with new_output(output.expanduser()) as file:
        file.write(data)
    terminal.note(f"wrote {output}: {len(data)} bytes")
    if terminal.json:
        terminal.print_json({"resource": resource, "output": str(output), "bytes": len(data)})


def _read(artifact: Artifact, role: str) -> bytes:
    from ninfer_format.errors import ArtifactError
    from ninfer_quant.nearest import did_you_mean

    components = artifact.directory.components
    for name, component in components.items():
        if role in component.resources:
            return artifact.resource(name, role)
    known = [name for component in components.values() for name in component.resources]
    raise ArtifactError(
        "reference",
        f"no resource {role!r}, there are {', '.join(known) or 'none'}",
        path=artifact.path,
        hint=did_you_mean(role, known),
    )
