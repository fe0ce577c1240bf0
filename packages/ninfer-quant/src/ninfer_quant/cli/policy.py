"""``ninfer-convert policy``: which activation precisions the uses of parameters permit."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from ninfer_format.commandline import Terminal, common_options
from ninfer_format.container.schema import ActivationPolicy
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
    short_help="Set the activation policy of parameters.",
    epilog="""\b
Examples:
  ninfer-convert policy in.ninfer out.ninfer \\
      --parameter 'text/layers/*/mlp/*' --policy AllowA8
  ninfer-convert policy in.ninfer out.ninfer \\
      --parameter text/output_head --parameter proposal/head --policy A16Only""",
)
@source_argument
@output_argument
@click.option(
    "--parameter",
    "patterns",
    multiple=True,
    required=True,
    metavar="GLOB",
    help="Shell pattern over whole parameter names, case-sensitive; repeatable.",
)
@click.option(
    "--policy",
    type=click.Choice(get_args(ActivationPolicy)),
    required=True,
    help="What all uses of these parameters shall permit besides 16 bit.",
)
@max_file_bytes_option
@force_option
@common_options(SCHEMA)
def policy(
    terminal: Terminal,
    source: Path,
    output: Path,
    patterns: tuple[str, ...],
    policy: ActivationPolicy,
    max_file_bytes: int,
    force: bool,
) -> None:
    """Write IN.ninfer as OUT.ninfer with another activation policy for some parameters.

    A policy permits lower precisions of the activations that a weight is multiplied with; it does
    not force them. Weights stay as they are, byte for byte.
    """
    from ninfer_format import open_artifact, set_activation_policy

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
            count = set_activation_policy(
                artifact,
                entry,
                patterns,
                policy,
                max_file_bytes=max_file_bytes,
                advance=advance,
            )
    terminal.note(f"uses changed: {count}")
    report_new_artifact(terminal, output, uses_changed=count)
