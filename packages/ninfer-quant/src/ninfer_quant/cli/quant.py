"""``ninfer-quant``: quantizing the weights of a model, and what belongs to that."""

from __future__ import annotations

from typing import NoReturn

import click

from ninfer_format.commandline import run, version_option
from ninfer_quant.cli.calibrate import calibrate
from ninfer_quant.cli.compare import compare
from ninfer_quant.cli.fp8 import fp8
from ninfer_quant.cli.groupwise import groupwise
from ninfer_quant.cli.nvfp4 import nvfp4
from ninfer_quant.cli.plan import plan
from ninfer_quant.cli.schema import QUANT_SCHEMA
from ninfer_quant.cli.sweep import sweep


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  ninfer-quant groupwise Qwen3.8-27B q4.ninfer --format q4_g64_fp16
  ninfer-quant calibrate Qwen3.8-27B --corpus mine.txt --out mine.safetensors
  ninfer-quant nvfp4 Qwen3.8-27B fp4.ninfer --method gptq \\
      --calibration mine.safetensors""",
)
@version_option("ninfer-quant")
def command() -> None:
    """Quantize the weights of a checkpoint or of a .ninfer artifact."""


_SUBCOMMANDS = (calibrate, compare, fp8, groupwise, nvfp4, plan, sweep)
for _subcommand in _SUBCOMMANDS:
    command.add_command(_subcommand)


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, QUANT_SCHEMA)
