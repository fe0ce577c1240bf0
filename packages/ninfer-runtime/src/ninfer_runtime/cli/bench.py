"""``ninfer-bench``: speed of models and of ops, and compilation of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import click

from ninfer_format.commandline import (
    GroupedCommand,
    Terminal,
    common_options,
    refuse_existing,
    refuse_given,
    refuse_inputs_as_outputs,
    run,
    version_option,
)
from ninfer_format.errors import ExitCode, UsageError
from ninfer_runtime.cli.bench_ops import OPS
from ninfer_runtime.cli.bench_output import FORMATS, write_document
from ninfer_runtime.cli.model_options import MODEL_OPTION_NAMES, choose_backend, model_options
from ninfer_runtime.cli.number_lists import Numbers, Pairs
from ninfer_runtime.cli.user_path import UserPath

SCHEMA = "ninfer-bench/1"

HEADINGS = {
    "Tests": ("n_prompt", "n_gen", "prompt_gen", "depth", "concurrency", "corpus", "profile"),
    "Model": (*MODEL_OPTION_NAMES, "synthetic", "recipe", "prefill_chunk"),
    "Ops": ("ops",),
    "Measuring": ("repetitions", "warmup", "compare", "fail_below"),
    "Result": ("output", "output_file", "force"),
    "Kernels": ("compile_only", "arch"),
}

EPILOG = """
\b
Examples:
  ninfer-bench model.ninfer -p 512,8192 -n 128
  ninfer-bench --synthetic qwen3.6-27b --recipe qwen3_6_27b -n 64 -d 4096 \\
      --kv-dtype int8 --concurrency 1,8 -o json --output-file 27b.json
  ninfer-bench --ops linear -r 3 -o csv
  ninfer-bench --compile-only --arch sm_90a
"""

_OF_MODELS = (*HEADINGS["Tests"], "synthetic", "recipe", "prefill_chunk", "warmup", "model")
_OF_ALL_MODELS = (*_OF_MODELS, "backend", "kv_dtype", "cuda_graph")


@click.command(
    cls=GroupedCommand,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@model_options()
@click.option(
    "-p",
    "--n-prompt",
    type=Numbers(1),
    default=(),
    help="Prompts of so many tokens.  [default: 512, with 128 to generate]",
)
@click.option(
    "-n", "--n-gen", type=Numbers(1), default=(), help="So many tokens to generate, from one on."
)
@click.option(
    "-pg",
    "--prompt-gen",
    type=Pairs(),
    default=(),
    help="Prompts and tokens after them, for example 512,128;4096,64.",
)
@click.option(
    "-d",
    "--depth",
    type=Numbers(0),
    default="0",
    help="Tokens that are in the context before.  [default: 0]",
)
@click.option(
    "--concurrency",
    type=Numbers(1, 8),
    default="1",
    help="Sequences at the same time, 1 to 8.  [default: 1]",
)
@click.option(
    "--corpus",
    type=UserPath(exists=True, dir_okay=False),
    metavar="FILE",
    help="JSON array of the token ids that prompts consist of, one prompt after the other.  "
    "[default: random ids]",
)
@click.option(
    "--profile", is_flag=True, help="Show where the time of each kind of step goes; needs a GPU."
)
@click.option(
    "--synthetic",
    metavar="GEOMETRY",
    help="Random weights instead of MODEL: qwen3.6-27b, qwen3.6-35b-a3b or a config.json.",
)
@click.option("--recipe", help="The formats of the random weights, by a recipe of ninfer-convert.")
@click.option(
    "--prefill-chunk",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Prompt tokens executed at a time.",
)
@click.option(
    "--ops",
    type=click.Choice(OPS),
    metavar="OP",
    multiple=True,
    help="Op to time instead, beside the read bandwidth of the device; repeatable. One of "
    f"{', '.join(OPS)}.",
)
@click.option(
    "-r",
    "--repetitions",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each case is measured; the median is reported.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="How often each test of a model is run before.",
)
@click.option(
    "--compare",
    type=UserPath(exists=True, dir_okay=False),
    metavar="FILE",
    help="What --output json wrote before: show the speed relative to it.",
)
@click.option(
    "--fail-below",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATIO",
    help="Fail where the speed relative to --compare is below this.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    help="How the result is written.  [default: table]",
)
@click.option(
    "--output-file",
    type=UserPath(dir_okay=False),
    metavar="FILE",
    help="Where to.  [default: standard output]",
)
@click.option("--force", is_flag=True, help="Replace an existing --output-file FILE.")
@click.option("--compile-only", is_flag=True, help="Compile every kernel; needs no GPU.")
@click.option(
    "--arch",
    multiple=True,
    metavar="sm_XY[a]",
    help="Architecture to compile for, for example sm_90a; repeatable.  [default: all]",
)
@version_option("ninfer-runtime")
@common_options(SCHEMA)
def command(terminal: Terminal, **options: Any) -> int:
    """Measure MODEL, or single ops, or compile all kernels.

    Figures are tokens per second, the median of the repetitions. Without MODEL, the artifact that
    NINFER_MODEL names is measured, else the small model that comes with this package.
    """
    _check_options(options)
    _check_output(terminal, options)
    if options["compile_only"]:
        from ninfer_runtime.cli.bench_kernels import compile_all

        compile_all(terminal, options["arch"])
        return ExitCode.OK
    if options["ops"]:
        from ninfer_runtime.cli.bench_ops import table, time_ops

        document = time_ops(terminal, options)
    else:
        from ninfer_runtime.cli.bench_models import table, time_model

        options["backend"] = choose_backend(options["backend"])
        document = time_model(terminal, options)
    is_slower = _compare(document, options["compare"], options["fail_below"])
    write_document(
        document,
        table,
        schema=SCHEMA,
        form=options["output"] or ("json" if terminal.json else "table"),
        path=options["output_file"],
        force=options["force"],
    )
    return ExitCode.FAILED if is_slower else ExitCode.OK


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, SCHEMA)


def _check_options(options: dict[str, Any]) -> None:
    """Refuse options that do not go together."""
    if options["compile_only"] and options["ops"]:
        raise UsageError("--ops and --compile-only exclude each other")
    if options["arch"] and not options["compile_only"]:
        raise UsageError("--arch goes with --compile-only")
    if options["compile_only"]:
        of_results = (*HEADINGS["Measuring"], *HEADINGS["Result"])
        refuse_given("--compile-only", *_OF_ALL_MODELS, *of_results, "device")
    if options["ops"]:
        refuse_given("--ops", *_OF_ALL_MODELS)
    if options["synthetic"] is not None and options["model"] is not None:
        raise UsageError("--synthetic and MODEL exclude each other")
    if (options["synthetic"] is None) != (options["recipe"] is None):
        raise UsageError("--synthetic and --recipe go together")
    if options["fail_below"] is not None and options["compare"] is None:
        raise UsageError("--fail-below needs --compare")


def _check_output(terminal: Terminal, options: dict[str, Any]) -> None:
    """Refuse an output that cannot be written, before anything is measured."""
    form, path = options["output"], options["output_file"]
    if terminal.json and form not in (None, "json"):
        raise UsageError(f"--json and --output {form} exclude each other")
    if path is None:
        if options["force"]:
            raise UsageError("--force needs --output-file")
        return
    inputs = [options[name] for name in ("model", "compare", "corpus")]
    refuse_inputs_as_outputs([path], [each for each in inputs if each is not None])
    refuse_existing(path, force=options["force"])


def _compare(document: dict[str, Any], path: Path | None, least: float | None) -> bool:
    """Put ratios into a document; says whether one is below what is allowed."""
    if path is None:
        return False
    from ninfer_runtime.bench.comparison import add_ratios, read_rows

    rows = [*document.get("ops", []), *document.get("tests", [])]
    ratios = add_ratios(rows, read_rows(path, SCHEMA))
    if not ratios:
        raise UsageError("nothing in it was measured now", path=path)
    return least is not None and min(ratios) < least
