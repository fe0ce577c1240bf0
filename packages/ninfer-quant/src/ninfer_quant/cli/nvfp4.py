"""``ninfer-quant nvfp4``: 4-bit floats with a scale for 16 columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ninfer_format.commandline import GroupedCommand, Terminal, common_options
from ninfer_format.errors import UsageError
from ninfer_quant.cli.quantize import HEADINGS, quantize, quantize_options
from ninfer_quant.cli.schema import QUANT_SCHEMA

_METHODS = {
    "absmax": "nvfp4_absmax",
    "mse": "nvfp4_mse",
    "ratio": "nvfp4_ratio",
    "four-over-six": "nvfp4_four_over_six",
    "gptq": "nvfp4_gptq",
}


@click.command(
    cls=GroupedCommand,
    headings={
        "Format": ("selectors", "method", "weighting", "calibration", "activation_divisor"),
        **HEADINGS,
    },
    short_help="E2M1 with an E4M3FN scale for 16 columns.",
    epilog="""\b
Examples:
  ninfer-quant nvfp4 Qwen3.8-27B fp4.ninfer --select 'text/layers/*/mlp/*'
  ninfer-quant nvfp4 in.ninfer out.ninfer --method mse
  ninfer-quant nvfp4 Qwen3.8-27B fp4.ninfer --method gptq \\
      --calibration mine.safetensors --activation-divisor mine.safetensors""",
)
@quantize_options
@click.option(
    "--method",
    type=click.Choice(list(_METHODS)),
    default="absmax",
    show_default=True,
    help="How the scale of a block is chosen; mse, ratio and four-over-six look at squared errors, "
    "gptq lets errors make up for each other.",
)
@click.option(
    "--weighting",
    type=click.Choice(["none", "diag"]),
    default="none",
    show_default=True,
    help="Weights of squared errors with mse: none, or the mean squares of calibrated inputs.",
)
@click.option(
    "--calibration", metavar="FILE", help="A calibration; gptq and --weighting diag need one."
)
@click.option(
    "--activation-divisor",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A calibration: permit 4-bit activations with divisors from its maxima.  [default: "
    "activations keep 16 bits]",
)
@common_options(QUANT_SCHEMA)
def nvfp4(terminal: Terminal, **options: Any) -> None:
    """Store matrices of IN as 4-bit floats in OUT.ninfer.

    IN is a checkpoint folder, a Hub id or an artifact. Everything that is not chosen stays as it
    is.
    """
    from ninfer_quant.recipes.one_format import OneFormat

    chosen = OneFormat(
        "nvfp4",
        _METHODS[options["method"]],
        _parameters(options),
        options["selectors"],
        _expanded(options["activation_divisor"]),
    )
    quantize(terminal, "ninfer-quant nvfp4", chosen, options)


def _parameters(options: dict[str, Any]) -> dict[str, str]:
    method, weighting = options["method"], options["weighting"]
    if weighting != "none" and method != "mse":
        raise UsageError(f"--weighting {weighting} is for --method mse, not {method}")
    needs_calibration = method == "gptq" or weighting == "diag"
    if needs_calibration and options["calibration"] is None:
        needed = "--method gptq" if method == "gptq" else "--weighting diag"
        raise UsageError(f"{needed} needs --calibration FILE", hint="see ninfer-quant calibrate")
    if not needs_calibration and options["calibration"] is not None:
        raise UsageError("--calibration is for --method gptq or --weighting diag")
    parameters = {} if weighting == "none" else {"weighting": weighting}
    return parameters | ({"calibration": options["calibration"]} if needs_calibration else {})


def _expanded(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser()
