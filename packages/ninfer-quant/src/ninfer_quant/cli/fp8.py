"""``ninfer-quant fp8``: 8-bit floats with a scale for each row."""

from __future__ import annotations

from typing import Any

import click

from ninfer_format.commandline import GroupedCommand, Terminal, common_options
from ninfer_quant.cli.quantize import HEADINGS, quantize, quantize_options
from ninfer_quant.cli.schema import QUANT_SCHEMA


@click.command(
    cls=GroupedCommand,
    headings={"Format": ("selectors",), **HEADINGS},
    short_help="E4M3FN with a bf16 scale for each row.",
    epilog="""\b
Examples:
  ninfer-quant fp8 Qwen3.8-27B fp8.ninfer
  ninfer-quant fp8 in.ninfer out.ninfer --select text/token_embedding""",
)
@quantize_options
@common_options(QUANT_SCHEMA)
def fp8(terminal: Terminal, **options: Any) -> None:
    """Store matrices of IN as 8-bit floats in OUT.ninfer.

    IN is a checkpoint folder, a Hub id or an artifact. Values are rounded to bf16 first. Everything
    that is not chosen stays as it is.
    """
    from ninfer_quant.recipes.one_format import OneFormat

    chosen = OneFormat("fp8_e4m3fn_row_bf16", "fp8_row_maxabs", selectors=options["selectors"])
    quantize(terminal, "ninfer-quant fp8", chosen, options)
