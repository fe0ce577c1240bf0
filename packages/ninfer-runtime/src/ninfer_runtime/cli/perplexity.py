"""``ninfer-perplexity``: how well a model predicts a text."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ninfer_format.commandline import (
    GroupedCommand,
    Progress,
    Terminal,
    common_options,
    run,
    version_option,
)
from ninfer_runtime.cli.model_options import (
    MODEL_OPTION_NAMES,
    choose_backend,
    choose_model,
    model_options,
    show_model,
    show_progress,
)
from ninfer_runtime.cli.user_path import UserPath

if TYPE_CHECKING:
    from ninfer_runtime.engine.loading import LoadedModel
    from ninfer_runtime.eval.divergence import DivergenceReport
    from ninfer_runtime.eval.perplexity import PerplexityReport
    from ninfer_runtime.text.frontend import Frontend

SCHEMA = "ninfer-perplexity/1"

HEADINGS = {
    "Text": ("text", "ids"),
    "Windows": ("context", "stride", "chunks"),
    "Comparison": ("logits_out", "logits_reference", "force"),
    "Model": MODEL_OPTION_NAMES,
}

EPILOG = """
\b
Examples:
  ninfer-perplexity --text heldout.txt --context 512
  ninfer-perplexity model.ninfer --text heldout.txt --context 512 --stride 256
  ninfer-perplexity model.ninfer --ids tokens.json --json > result.json
  ninfer-perplexity bf16.ninfer --text t.txt --logits-out bf16.logits
  ninfer-perplexity q4.ninfer --text t.txt --logits-reference bf16.logits
"""


@click.command(
    cls=GroupedCommand,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@model_options()
@click.option(
    "--text",
    type=UserPath(exists=True, dir_okay=False),
    help="UTF-8 text to predict; not with --ids.",
)
@click.option(
    "--ids",
    type=UserPath(exists=True, dir_okay=False),
    help="JSON array of token ids instead; not with --text.",
)
@click.option(
    "--context",
    type=click.IntRange(min=2),
    default=4096,
    show_default=True,
    help="Longest window, in tokens.",
)
@click.option(
    "--stride",
    type=click.IntRange(min=1),
    help="Tokens by which windows advance, below --context.  [default: context/2]",
)
@click.option(
    "--chunks",
    type=click.IntRange(min=1),
    help="Most windows of a comparison.  [default: all]",
)
@click.option(
    "--logits-out",
    type=UserPath(dir_okay=False),
    metavar="FILE",
    help="Keep the probabilities of all tokens, 2 bytes each, for comparisons; the second halves "
    "of windows that do not overlap are scored.",
)
@click.option(
    "--logits-reference",
    type=UserPath(exists=True, dir_okay=False),
    metavar="FILE",
    help="What another model's --logits-out has written: show how far this model is from it.",
)
@click.option("--force", is_flag=True, help="Replace an existing --logits-out FILE.")
@version_option("ninfer-runtime")
@common_options(SCHEMA)
def command(terminal: Terminal, **options: Any) -> None:
    """Measure the perplexity of MODEL on a text.

    Every token but the first is scored once, in windows that overlap. Without MODEL, the artifact
    that NINFER_MODEL names is used, then the small model that comes with this package.
    """
    from ninfer_format.errors import UsageError
    from ninfer_runtime.cli.logits import check_logits_options, score_logits
    from ninfer_runtime.eval.perplexity import check_stream, check_window_sizes

    if (options["text"] is None) == (options["ids"] is None):
        raise UsageError("exactly one of --text and --ids is needed")
    context = options["context"]
    stride = context // 2 if options["stride"] is None else options["stride"]
    check_window_sizes(context, stride)
    with_logits = check_logits_options(options)
    loaded = _load(terminal, options)
    show_model(terminal, loaded.info)
    token_ids = _token_ids(loaded.frontend, options["text"], options["ids"])
    check_stream(token_ids)
    divergence = None
    if with_logits:
        report, divergence = score_logits(terminal, loaded, token_ids, options)
    else:
        report = _score(terminal, loaded, token_ids, context, stride)
    source = options["text"] or options["ids"]
    if terminal.json:
        document = _document(report, model=loaded.info.name, source=str(source))
        if divergence is not None:
            document["divergence"] = asdict(divergence)
        terminal.print_json(document)
    else:
        _print_table(report, divergence)


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, SCHEMA)


def _score(
    terminal: Terminal, loaded: LoadedModel, token_ids: list[int], context: int, stride: int
) -> PerplexityReport:
    from ninfer_runtime.eval.perplexity import score_stream

    with Progress(terminal, "scoring", total=len(token_ids) - 1) as progress:
        return score_stream(
            loaded.program,
            token_ids,
            context=context,
            stride=stride,
            public_tokens=loaded.info.public_tokens,
            advance=progress.advance,
        )


def _load(terminal: Terminal, options: dict[str, Any]) -> LoadedModel:
    from ninfer_format.errors import UsageError
    from ninfer_runtime.engine.loading import load
    from ninfer_runtime.engine.options import EngineOptions
    from ninfer_runtime.errors import ContextError

    engine_options = EngineOptions(
        model=choose_model(terminal, options["model"]),
        backend=choose_backend(options["backend"]),
        device=options["device"],
        max_context=options["context"],
        kv_dtype=options["kv_dtype"],
        use_cuda_graph=options["cuda_graph"],
    )
    try:
        return load(engine_options, show_progress(terminal))
    except ContextError as error:
        # The engine speaks of an option that this command calls by another name.
        raise UsageError(f"--context {error.found} is outside 1..{error.largest}") from error


def _token_ids(frontend: Frontend, text: Path | None, ids: Path | None) -> list[int]:
    from ninfer_format.errors import UsageError
    from ninfer_runtime.cli.token_ids import read_token_ids

    if ids is not None:
        return read_token_ids(ids, frontend.tokenizer.public_tokens)
    try:
        content = text.read_bytes().decode("utf-8") if text is not None else ""
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8: {error.reason} at byte {error.start}", path=text) from None
    return frontend.tokenizer.encode(content)


def _document(report: PerplexityReport, *, model: str, source: str) -> dict[str, Any]:
    return {
        "model": model,
        "source": source,
        "context": report.context,
        "stride": report.stride,
        "tokens": report.tokens,
        "scored_tokens": report.scored_tokens,
        "windows": len(report.windows),
        "mean_nll": report.mean_nll,
        "perplexity": report.perplexity if math.isfinite(report.perplexity) else None,
        "bits_per_token": report.bits_per_token,
        "seconds": report.scoring_s,
        "tok_s": report.tok_s,
        "window_nll": [score.mean_nll for score in report.windows],
    }


def _print_table(report: PerplexityReport, divergence: DivergenceReport | None) -> None:
    rows = {
        "tokens scored": f"{report.scored_tokens} of {report.tokens}",
        "windows": f"{len(report.windows)} (context {report.context}, stride {report.stride})",
        "mean NLL": f"{report.mean_nll:.6f} nats",
        "perplexity": f"{report.perplexity:.6f}",
        "bits per token": f"{report.bits_per_token:.6f}",
        "speed": f"{report.tok_s:.1f} tok/s ({report.scoring_s:.1f} s)",
    }
    if divergence is not None:
        rows |= {
            "KL mean": f"{divergence.mean_kl:.6g} nats",
            "KL median": f"{divergence.median_kl:.6g} nats",
            "KL 99 %": f"{divergence.p99_kl:.6g} nats",
            "KL maximum": f"{divergence.max_kl:.6g} nats",
            "same top token": f"{100 * divergence.top1_agreement:.2f} %",
            "RMS Δp": f"{100 * divergence.rms_probability_difference:.3f} %",
        }
    for name, value in rows.items():
        click.echo(f"{name:<16}{value}")
