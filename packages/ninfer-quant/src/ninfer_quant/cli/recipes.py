"""``ninfer-convert recipes``: the built-in recipes."""

from __future__ import annotations

import click

from ninfer_format.commandline import Terminal, common_options
from ninfer_quant.cli.schema import SCHEMA


@click.command(
    epilog="""\b
Examples:
  ninfer-convert recipes
  ninfer-convert recipes --json > recipes.json""",
)
@common_options(SCHEMA)
def recipes(terminal: Terminal) -> None:
    """List the built-in recipes and the checkpoints they need; base is --model."""
    from ninfer_quant.recipes.loading import OFFICIAL

    if terminal.json:
        entries = [
            {"name": name, "assigns": recipe.assigns, "sources": list(recipe.sources)}
            for name, recipe in OFFICIAL.items()
        ]
        terminal.print_json({"recipes": entries})
        return
    width = max(map(len, OFFICIAL))
    for name, recipe in OFFICIAL.items():
        needed = ", ".join(recipe.sources)
        click.echo(f"{name:<{width}}  {recipe.assigns}; from {needed}")
