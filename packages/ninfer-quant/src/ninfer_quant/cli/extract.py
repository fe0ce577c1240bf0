"""``ninfer-convert extract``: a resource of an artifact as a file."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer_format.commandline import Terminal, common_options, new_output
from ninfer_format.errors import UsageError
from ninfer_quant.cli.schema import SCHEMA


@click.command(
    short_help="Write a stored resource to a file.",
    epilog="""\b
Examples:
  ninfer-convert extract model.ninfer --resource chat_template.jinja
  ninfer-convert extract model.ninfer --resource text/tokenizer.json -o t.json""",
)
@click.argument("artifact", type=click.Path(path_type=Path), metavar="IN.ninfer")
@click.option(
    "--resource",
    required=True,
    metavar="ROLE",
    help="For example tokenizer.json, or COMPONENT/ROLE.",
)
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
    from ninfer_format.inspect.resources import find_resource

    if terminal.json and output is None:
        raise UsageError("--json needs -o FILE, because stdout is the resource otherwise")
    with open_artifact(artifact.expanduser()) as opened:
        data = opened.resource(*find_resource(opened, resource))
    if output is None:
        click.echo(data, nl=False)
        return
    with new_output(output.expanduser(), force=None) as file:
        file.write(data)
    terminal.note(f"wrote {output}: {len(data)} bytes")
    if terminal.json:
        terminal.print_json({"resource": resource, "output": str(output), "bytes": len(data)})
