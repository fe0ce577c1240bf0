"""``ninfer-quant calibrate``: what the inputs of projections look like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ninfer_format.commandline import (
    GroupedCommand,
    Progress,
    Terminal,
    common_options,
    refuse_existing,
    refuse_given,
    refuse_inputs_as_outputs,
)
from ninfer_format.errors import UsageError
from ninfer_quant.cli.schema import QUANT_SCHEMA

if TYPE_CHECKING:
    from ninfer_quant.calibration.job import OnNonFinite


@click.command(
    cls=GroupedCommand,
    headings={
        "Text": ("corpus", "rows", "cols", "sample", "on_nonfinite"),
        "Output": ("out", "hessians", "force"),
    },
    short_help="Let a model read text and record what its projections see.",
    epilog="""\b
Examples:
  ninfer-quant calibrate Qwen3.8-27B --corpus my.jsonl --out c.safetensors
  ninfer-quant calibrate model.ninfer --rows 64 --cols 512 --out c.safetensors
  ninfer-quant calibrate model.ninfer --no-hessians --out d.safetensors
  ninfer-quant calibrate model.ninfer --sample --out trace.safetensors
  ninfer-quant calibrate DIR --corpus trace.safetensors --out c.safetensors""",
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
    "--sample",
    is_flag=True,
    help="Record nothing, but let the artifact MODEL go on with the text, and write a corpus of what "
    "it was given and wrote.",
)
@click.option(
    "--on-nonfinite",
    type=click.Choice(["stop", "exclude"]),
    default="stop",
    show_default=True,
    help="Where a row makes the model compute NaN or infinity: stop, or leave it out from that layer "
    "on, a tenth of the rows at most.",
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
    sample: bool,
    on_nonfinite: OnNonFinite,
    out: Path,
    hessians: bool,
    force: bool,
) -> None:
    """Let MODEL read text on the CPU and record the inputs of its projections.

    MODEL is a checkpoint folder, a Hub id or an artifact. The command may be interrupted and given
    again: it goes on with the layer where it was.
    """
    from ninfer_quant.calibration.corpus_rows import read_corpus
    from ninfer_quant.calibration.job import CalibrationOptions, work_steps
    from ninfer_quant.calibration.job import calibrate as run_calibration
    from ninfer_quant.calibration.model import open_model
    from ninfer_quant.sources.open import locate

    if sample:
        refuse_given("--sample", "hessians", "on_nonfinite")
    out = out.expanduser()
    corpus = None if corpus is None else corpus.expanduser()
    refuse_existing(out, force=force)
    path = locate(model)
    refuse_inputs_as_outputs([out], [path] if corpus is None else [path, corpus])
    if sample:
        _sample(terminal, path, corpus, rows=rows, cols=cols, out=out, force=force)
        return
    options = CalibrationOptions(
        out, force=force, keeps_hessians=hessians, on_nonfinite=on_nonfinite
    )
    with open_model(path) as opened:
        _check_cols(cols, opened.max_tokens)
        text = read_corpus(corpus, opened.frontend, rows=rows, cols=cols)
        if corpus is None:
            terminal.warn(
                f"the built-in text is small ({text.num_tokens} tokens); text like that which the "
                "model will see is better"
            )
        total = work_steps(opened, text)
        with Progress(terminal, "calibrating", total=total) as progress:
            metadata = run_calibration(opened, text, options, progress.advance)
    _warn(terminal, metadata)
    terminal.note(f"wrote {out}: {metadata['tokens']} tokens in {metadata['rows']} rows")
    if terminal.json:
        terminal.print_json({"output": str(out), **metadata})


def _check_cols(cols: int, most: int) -> None:
    if cols > most:
        raise UsageError(f"--cols {cols}: the model was made for {most} tokens")


def _sample(
    terminal: Terminal,
    model: Path,
    corpus: Path | None,
    *,
    rows: int,
    cols: int,
    out: Path,
    force: bool,
) -> None:
    from ninfer_format import open_artifact
    from ninfer_quant.calibration.corpus_rows import read_corpus
    from ninfer_quant.calibration.self_sampling import passage_tokens, sample_rows
    from ninfer_runtime import Engine, EngineOptions
    from ninfer_runtime.text.frontend import Frontend

    if model.is_dir():
        raise UsageError(
            "--sample runs an artifact",
            path=model,
            hint="convert the checkpoint first, for example with recipe qwen3_8_27b_bf16",
        )
    with open_artifact(model) as artifact:
        _check_cols(cols, artifact.directory.components["text"].config["max_position_embeddings"])
        frontend = Frontend.from_artifact(artifact)
        identity = artifact.artifact_id.hex()
    passages = read_corpus(
        corpus, frontend, rows=rows, cols=passage_tokens(cols), has_random_rows=False
    )
    with (
        Engine(EngineOptions(model, max_context=cols)) as engine,
        Progress(terminal, "sampling", total=len(passages.rows)) as progress,
    ):
        metadata = sample_rows(
            engine,
            frontend,
            passages,
            out,
            identity=identity,
            force=force,
            advance=progress.advance,
        )
    terminal.note(
        f"wrote {out}: {metadata['rows']} rows, {metadata['sampled_tokens']} sampled tokens"
    )
    if terminal.json:
        terminal.print_json({"output": str(out), **metadata})


def _warn(terminal: Terminal, metadata: Mapping[str, str]) -> None:
    """Say what the corpus did not reach."""
    excluded = int(metadata["excluded_rows"])
    if excluded:
        terminal.warn(
            f"{excluded} of {metadata['rows']} rows were excluded: the model computes NaN or infinity "
            "from them"
        )
    without, few = (int(metadata[f"experts_{key}_tokens"]) for key in ("without", "with_few"))
    if without or few:
        terminal.warn(
            f"of {metadata['experts']} experts {without} saw no token and {few} too few; the other "
            "experts of their layers stand in for them; calibrate with more text"
        )
