"""``ninfer-quant calibrate``: what the inputs of projections look like."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer_format.commandline import (
    GroupedCommand,
    Progress,
    Terminal,
    common_options,
    refuse_existing,
    refuse_inputs_as_outputs,
)
from ninfer_format.errors import UsageError
from ninfer_quant.cli.schema import QUANT_SCHEMA


@click.command(
    cls=GroupedCommand,
    headings={"Text": ("corpus", "rows", "cols"), "Output": ("out", "hessians", "force")},
    short_help="Let a model read text and record what its projections see.",
    epilog="""\b
Examples:
  ninfer-quant calibrate Qwen3.8-27B --corpus my.jsonl --out c.safetensors
  ninfer-quant calibrate model.ninfer --rows 64 --cols 512 --out c.safetensors
  ninfer-quant calibrate model.ninfer --no-hessians --out d.safetensors""",
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What the model reads: .txt, .jsonl with text or messages, or .safetensors with input_ids "
    "and lengths.  [default: a small built-in text]",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=250,
    show_default=True,
    help="Most rows of text.",
)
@click.option(
    "--cols",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Most tokens of a row.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Safetensors file to write; unfinished work is kept in FILE.work.",
)
@click.option(
    "--hessians/--no-hessians",
    default=True,
    show_default=True,
    help="Record second moments between columns too: for gptq, K² numbers for an input of width K.",
)
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
@common_options(QUANT_SCHEMA)
def calibrate(
    terminal: Terminal,
    model: str,
    corpus: Path | None,
    rows: int,
    cols: int,
    out: Path,
    hessians: bool,
    force: bool,
) -> None:
    """Let MODEL read text on the CPU and record the inputs of its projections.

    MODEL is a checkpoint folder, a Hub id or an artifact. The command may be interrupted and given again: it
    goes on with the layer where it was.
    """
    from ninfer_quant.calibration.corpus_rows import read_corpus
    from ninfer_quant.calibration.job import CalibrationOptions, work_steps
    from ninfer_quant.calibration.job import calibrate as run_calibration
    from ninfer_quant.calibration.model import open_model
    from ninfer_quant.sources.open import locate

    out = out.expanduser()
    corpus = None if corpus is None else corpus.expanduser()
    refuse_existing(out, force=force)
    path = locate(model)
    refuse_inputs_as_outputs([out], [path] if corpus is None else [path, corpus])
    options = CalibrationOptions(out, force=force, keeps_hessians=hessians)
    with open_model(path) as opened:
        if cols > opened.max_tokens:
            raise UsageError(f"--cols {cols}: the model was made for {opened.max_tokens} tokens")
        text = read_corpus(corpus, opened.frontend, rows=rows, cols=cols)
        if corpus is None:
            terminal.warn(
                f"the built-in text is small ({text.num_tokens} tokens); text like that which the "
                "model will see is better"
            )
        total = work_steps(opened, text)
        with Progress(terminal, "calibrating", total=total) as progress:
            metadata = run_calibration(opened, text, options, progress.advance)
    terminal.note(f"wrote {out}: {metadata['tokens']} tokens in {metadata['rows']} rows")
    if terminal.json:
        terminal.print_json({"output": str(out), **metadata})
