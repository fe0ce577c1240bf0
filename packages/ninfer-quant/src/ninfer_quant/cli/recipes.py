"""``ninfer-convert recipes``: the built-in recipes."""

from __future__ import annotations

import click

from ninfer_format.commandline import Terminal, common_options
from ninfer_quant.cli.schema import SCHEMA


@click.command()
@common_options(SCHEMA)
def recipes(terminal: Terminal) -> None:
    """List the built-in recipes."""
    from ninfer_quant.recipes.loading import OFFICIAL

    if terminal.json:
        entries = [{"name": name, "assigns": text} for name, text in OFFICIAL.items()]
        terminal.print_json({"recipes": entries})
        return
    width = max(map(len, OFFICIAL))
    for name, text in OFFICIAL.items():
        click.echo(f"{name:<{width}}  {text}")
