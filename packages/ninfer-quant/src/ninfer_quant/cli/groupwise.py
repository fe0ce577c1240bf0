"""``ninfer-quant groupwise``: integer codes with a scale for a group of columns."""

from __future__ import annotations

from typing import Any

import click

from ninfer_format.commandline import GroupedCommand, Terminal, common_options
from ninfer_format.errors import UsageError
from ninfer_quant.cli.quantize import HEADINGS, quantize, quantize_options
from ninfer_quant.cli.schema import QUANT_SCHEMA

FORMATS = ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16", "q4_g32_fp16_rows")
_ROWS = "q4_g32_fp16_rows"
_METHODS = {"absmax": "grouped_absmax", "mse": "grouped_mse", "gptq": "grouped_gptq"}


@click.command(
    cls=GroupedCommand,
    headings={"Format": ("format", "selectors", "method", "calibration"), **HEADINGS},
    short_help="Integers with a binary16 scale for 32 or 64 columns.",
    epilog="""\b
Examples:
  ninfer-quant groupwise Qwen3.8-27B q4.ninfer --format q4_g64_fp16
  ninfer-quant groupwise Qwen3.8-27B q5.ninfer --format q5_g64_fp16 \\
      --method mse
  ninfer-quant groupwise in.ninfer out.ninfer --format q8_g32_fp16 \\
      --select text/output_head --select text/token_embedding""",
)
@quantize_options
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    required=True,
    help="Format of the chosen matrices; the last is for tables of many short rows.",
)
@click.option(
    "--method",
    type=click.Choice(list(_METHODS)),
    default="absmax",
    show_default=True,
    help="Scales from the maximum of a group, or of the least squared error; gptq: errors make up "
    "for each other as far as the calibrated inputs allow.",
)
@click.option("--calibration", metavar="FILE", help="A calibration; for gptq, which needs one.")
@common_options(QUANT_SCHEMA)
def groupwise(terminal: Terminal, **options: Any) -> None:
    """Store matrices of IN as grouped integers in OUT.ninfer.

    IN is a checkpoint folder, a Hub id or an artifact. Everything that is not chosen stays as it
    is.
    """
    from ninfer_quant.recipes.one_format import OneFormat

    format_, method, calibration = options["format"], options["method"], options["calibration"]
    if format_ == _ROWS and method != "absmax":
        raise UsageError(f"--method {method} is not for --format {_ROWS}", hint="use absmax")
    if (method == "gptq") != (calibration is not None):
        raise UsageError("--method gptq and --calibration need each other")
    name = "q4_rows_maxabs" if format_ == _ROWS else _METHODS[method]
    parameters = {} if calibration is None else {"calibration": calibration}
    chosen = OneFormat(format_, name, parameters, options["selectors"])
    quantize(terminal, "ninfer-quant groupwise", chosen, options)
