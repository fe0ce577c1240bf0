"""``ninfer``: one answer of a model on the command line."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click

from ninfer_format.commandline import GroupedCommand, Terminal, common_options, run, version_option
from ninfer_format.errors import ExitCode
from ninfer_runtime.cli.model_options import (
    MODEL_OPTION_NAMES,
    choose_backend,
    choose_model,
    model_options,
    show_model,
    show_progress,
)
from ninfer_runtime.cli.sampling_options import SAMPLING_OPTION_NAMES, sampling_options
from ninfer_runtime.cli.user_path import UserPath
from ninfer_runtime.engine.request import ReasoningEffort

if TYPE_CHECKING:
    from ninfer_runtime.cli.answer import AnswerPrinter
    from ninfer_runtime.cli.statistics import Statistics
    from ninfer_runtime.engine.engine import Engine
    from ninfer_runtime.engine.handle import GenerationHandle
    from ninfer_runtime.engine.options import EngineOptions
    from ninfer_runtime.engine.request import (
        GenerationResult,
        PreparedPrompt,
        PromptInput,
        RequestOptions,
    )

SCHEMA = "ninfer/1"

GPU_PREFILL_CHUNK = 4096
"""A single prompt may take all the memory that is left."""

STDERR = 2
"""File descriptor of the standard error stream."""

HEADINGS = {
    "Prompt": (
        "prompt",
        "messages",
        "chat_template",
        "no_thinking",
        "reasoning_effort",
        "dry_run",
    ),
    "Model": MODEL_OPTION_NAMES,
    "Context and memory": ("max_context", "prefill_chunk"),
    "Sampling": SAMPLING_OPTION_NAMES,
    "Output": (
        "max_new",
        "stop",
        "reasoning_stop",
        "stop_token_id",
        "raw_output",
        "print_token_ids",
    ),
}

EPILOG = """
\b
Examples:
  ninfer --prompt "What is the capital of Italy?"
  ninfer model.ninfer --messages chat.json --greedy --max-new 256
  echo "Sort: pear, fig, apple" | ninfer model.ninfer --prompt - --json
  ninfer model.ninfer --messages chat.json --dry-run -v
"""


@click.command(
    cls=GroupedCommand,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@model_options()
@click.option("--prompt", metavar="TEXT", help="One user turn, - for stdin; not with --messages.")
@click.option("--messages", metavar="FILE", help="A chat as JSON, - for stdin; not with --prompt.")
@click.option(
    "--chat-template",
    type=UserPath(exists=True, dir_okay=False),
    help="Jinja file to use instead of the artifact's template.",
)
@click.option("--no-thinking", is_flag=True, help="Answer without thinking first.")
@click.option(
    "--reasoning-effort",
    type=click.Choice(get_args(ReasoningEffort)),
    help="How much to think first; only none goes with --no-thinking.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the number of prompt tokens, with -v the prompt too."
)
@click.option(
    "--max-context",
    type=click.IntRange(min=1),
    help="Longest prompt and answer, in tokens.  [default: 2048, or the model's limit]",
)
@click.option(
    "--prefill-chunk",
    type=click.IntRange(min=1),
    help="Prompt tokens executed at a time, a multiple of 128.  [default: 1024, on a GPU up to "
    "4096]",
)
@sampling_options()
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    metavar="INTEGER",
    help="Seed of the random numbers.",
)
@click.option(
    "--max-new",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Most tokens to generate.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@click.option(
    "--reasoning-stop",
    multiple=True,
    metavar="TEXT",
    help="The same in the reasoning; repeatable.",
)
@click.option(
    "--stop-token-id",
    multiple=True,
    type=click.IntRange(0, 2**31 - 1),
    metavar="INTEGER",
    help="End with this token; repeatable.",
)
@click.option("--raw-output", is_flag=True, help="Print everything, special tokens too.")
@click.option("--print-token-ids", is_flag=True, help="Print the generated ids on stderr.")
@version_option("ninfer-runtime")
@common_options(SCHEMA)
def command(terminal: Terminal, **options: Any) -> int:
    """Answer one prompt or chat with MODEL.

    The answer goes to stdout, thoughts and statistics go to stderr. Exactly one of --prompt and
    --messages is needed. Without MODEL, the artifact that NINFER_MODEL names is used, then the
    small model that comes with this package.
    """
    from ninfer_runtime.cli.request_options import prompt_input, request_options

    prompt = prompt_input(options)
    request = request_options(options)
    engine_options = _engine_options(choose_model(terminal, options["model"]), options)
    if options["dry_run"]:
        return _dry_run(terminal, engine_options, prompt)
    return _generate(terminal, engine_options, prompt, request, options)


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, SCHEMA)


def _engine_options(model: Path, options: dict[str, Any]) -> EngineOptions:
    from ninfer_runtime.engine.options import EngineOptions

    return EngineOptions(
        model=model,
        backend=choose_backend(options["backend"]),
        device=options["device"],
        max_context=options["max_context"],
        prefill_chunk=options["prefill_chunk"],
        gpu_prefill_chunk=GPU_PREFILL_CHUNK,
        kv_dtype=options["kv_dtype"],
        use_cuda_graph=options["cuda_graph"],
        chat_template=options["chat_template"],
    )


def _dry_run(terminal: Terminal, engine_options: EngineOptions, prompt: PromptInput) -> int:
    from ninfer_runtime.engine.loading import load_frontend

    prepared = load_frontend(engine_options).prepare(prompt)
    _show_prompt(terminal, prepared)
    if terminal.json:
        terminal.print_json({"prompt_tokens": len(prepared.token_ids)})
    else:
        click.echo(f"{len(prepared.token_ids)} prompt tokens")
    return ExitCode.OK


def _show_prompt(terminal: Terminal, prepared: PreparedPrompt) -> None:
    if terminal.verbose and not terminal.quiet:
        click.echo(prepared.text, err=True)


def _generate(
    terminal: Terminal,
    engine_options: EngineOptions,
    prompt: PromptInput,
    request: RequestOptions,
    options: dict[str, Any],
) -> int:
    from ninfer_runtime.engine.engine import Engine

    with Engine(engine_options, show_progress(terminal)) as engine:
        show_model(terminal, engine.model_info)
        statistics, is_interrupted = _answer(terminal, engine, prompt, request)
    if options["print_token_ids"]:
        click.echo(" ".join(map(str, statistics.result.token_ids)), err=True)
    statistics.print(terminal)
    if terminal.json:
        terminal.print_json(statistics.document(with_token_ids=options["print_token_ids"]))
    return ExitCode.INTERRUPTED if is_interrupted else ExitCode.OK


def _answer(
    terminal: Terminal, engine: Engine, prompt: PromptInput, request: RequestOptions
) -> tuple[Statistics, bool]:
    from ninfer_runtime.cli.answer import AnswerPrinter
    from ninfer_runtime.cli.statistics import Statistics
    from ninfer_runtime.errors import RequestError, RequestErrorKind

    started = time.monotonic()
    prepared = engine.prepare(prompt)
    prepare_s = time.monotonic() - started
    _show_prompt(terminal, prepared)
    printer = AnswerPrinter(terminal, show_content=not terminal.json)
    handle = engine.submit(prepared, request, printer)
    try:
        result, is_interrupted = _wait(terminal, handle, printer)
    except RequestError as error:
        # Output that cannot be written is no fault of the request.
        if error.kind is RequestErrorKind.CANCELLED and isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        if error.exit_code is ExitCode.INTERNAL:
            error.hint = "run again with --debug"
        raise
    finally:
        printer.end_progress()
    printer.finish(result.tool_calls)
    statistics = Statistics(result, handle.sampling, prepare_s, engine.model_info, engine.memory())
    return statistics, is_interrupted


def _wait(
    terminal: Terminal, handle: GenerationHandle, printer: AnswerPrinter
) -> tuple[GenerationResult, bool]:
    try:
        return handle.wait(), False
    except KeyboardInterrupt:
        handle.cancel()
    try:
        if _stderr_takes_text():
            terminal.note("\nstopping (interrupt again to end at once)")
        return handle.wait(), True
    except KeyboardInterrupt:
        _leave_at_once(printer)


def _leave_at_once(printer: AnswerPrinter) -> NoReturn:
    """End without the shutdown of the interpreter, which waits for a running matrix product.

    Stdout is left alone: the engine's thread holds its lock while a reader of the answer pauses,
    and every piece of the answer was flushed when it was written.
    """
    if _stderr_takes_text():
        printer.end_progress()
        click.echo("interrupted", err=True)
    os._exit(ExitCode.INTERRUPTED)


def _stderr_takes_text() -> bool:
    """Whether a line can be written on stderr without waiting for its reader, if it has one."""
    try:
        return bool(select.select([], [STDERR], [], 0)[1])
    except OSError:  # closed before the process began
        return False
