"""``ninfer-convert``: checkpoints to artifacts, and what belongs to that."""

from __future__ import annotations

from typing import NoReturn

import click

from ninfer_format.commandline import run, version_option
from ninfer_quant.cli.attach import attach
from ninfer_quant.cli.build import build
from ninfer_quant.cli.extract import extract
from ninfer_quant.cli.policy import policy
from ninfer_quant.cli.recipes import recipes
from ninfer_quant.cli.rename import rename
from ninfer_quant.cli.resource import resource
from ninfer_quant.cli.schema import SCHEMA
from ninfer_quant.cli.sources import sources
from ninfer_quant.cli.split import split
from ninfer_quant.cli.template import template
from ninfer_quant.cli.upgrade import upgrade


class _BuildByDefault(click.Group):
    """A line without a subcommand belongs to ``build``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"-h", "--help", "--version"}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["build", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_BuildByDefault,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  ninfer-convert --model Qwen3.8-27B --recipe qwen3_8_27b --out qwen.ninfer
  ninfer-convert build --help
  ninfer-convert recipes""",
)
@version_option("ninfer-quant")
def command() -> None:
    """Convert checkpoints to .ninfer artifacts.

    Options without a subcommand are those of build.
    """


_SUBCOMMANDS = (
    attach,
    build,
    extract,
    policy,
    recipes,
    rename,
    resource,
    sources,
    split,
    template,
    upgrade,
)
for _subcommand in _SUBCOMMANDS:
    command.add_command(_subcommand)


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, SCHEMA)
