"""``ninfer-inspect``: what is in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import click

from ninfer_format.commandline import Terminal, common_options, run, version_option
from ninfer_format.inspect.command_with_subcommand import CommandWithSubcommand
from ninfer_format.inspect.decode_command import decode
from ninfer_format.inspect.intervals import INTERVAL
from ninfer_format.inspect.request import InspectRequest
from ninfer_format.inspect.schema import SCHEMA

EPILOG = """
\b
Examples:
  ninfer-inspect model.ninfer
  ninfer-inspect model.ninfer --bindings --select 'text/layers/0/*'
  ninfer-inspect model.ninfer --verify
  ninfer-inspect model.gguf --objects --json > tensors.json
"""

HEADINGS = {
    "Lists": ("objects", "bindings", "uses", "resources", "select"),
    "Contents": ("config", "resource", "tensor", "rows", "cols"),
    "Checks": ("verify", "diff"),
    "Memory": ("memory", "max_context", "slots", "kv_dtype"),
}


@click.command(
    cls=CommandWithSubcommand,
    subcommand=decode,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--objects", is_flag=True, help="List the stored objects, or tensors.")
@click.option("--bindings", is_flag=True, help="List where parameters are stored and used.")
@click.option("--uses", is_flag=True, help="List where parameters meet activations.")
@click.option("--resources", is_flag=True, help="List the resources of the components.")
@click.option(
    "--select", metavar="GLOB", help="Of the lists, show only names that match, such as 'text/*'."
)
@click.option("--config", is_flag=True, help="Print configurations and metadata as JSON.")
@click.option("--resource", metavar="ROLE", help="Print a resource, by role or COMPONENT/ROLE.")
@click.option(
    "--tensor", metavar="NAME", help="Print statistics of a parameter, else of an object."
)
@click.option("--rows", type=INTERVAL, metavar="A:B", help="Print the values of rows A up to B.")
@click.option("--cols", type=INTERVAL, metavar="A:B", help="Print the values of columns A up to B.")
@click.option(
    "--verify", is_flag=True, help="Check every stored word, and hashes if there are any."
)
@click.option(
    "--diff",
    metavar="OTHER",
    type=click.Path(path_type=Path),
    help="Compare with another artifact; exit 1 if they differ.",
)
@click.option("--memory", is_flag=True, help="Estimate what an engine would allocate.")
@click.option(
    "--max-context",
    type=click.IntRange(min=1),
    metavar="N",
    help="Longest sequence in tokens; without it the engine's default.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Sequences held at the same time; 1 without it.",
)
@click.option(
    "--kv-dtype", metavar="TYPE", help="Type of the cache; without it the engine's default."
)
@version_option("ninfer-format")
@common_options(SCHEMA)
def command(terminal: Terminal, file: Path, **options: Any) -> int:
    """Describe FILE: a .ninfer artifact, or a checkpoint in Safetensors or GGUF.

    Headers are read and checked; stored values are not touched unless asked for. At most one of
    the lists together, --config, --resource, --tensor, --verify, --diff and --memory is shown;
    without any it is the summary.
    """
    request = InspectRequest(**options)
    from ninfer_format.inspect.file_view import print_file

    return print_file(terminal, file.expanduser(), request)


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, SCHEMA)
