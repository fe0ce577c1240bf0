"""``ninfer-convert build``: one checkpoint to one artifact."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ninfer_format.commandline import (
    SIZE,
    GroupedCommand,
    Progress,
    Terminal,
    common_options,
    format_bytes,
)
from ninfer_format.container.json_text import is_text
from ninfer_format.errors import UsageError
from ninfer_quant.cli.blas_threads import keep_blas_on_one_thread
from ninfer_quant.cli.device import (
    choose_device,
    choose_rows_per_chunk,
    device_option,
    rows_per_chunk_option,
)
from ninfer_quant.cli.schema import SCHEMA

if TYPE_CHECKING:
    from ninfer_quant.pipeline.conversion import Conversion, ConversionRequest
    from ninfer_quant.pipeline.run import RunOptions
    from ninfer_quant.recipes.proposal import ProposalRequest

COMPONENTS = ("text", "vision", "mtp", "dflash", "dflash2")

HEADINGS = {
    "Input": ("model", "recipe", "override", "source", "components", "resource"),
    "Proposal head": ("proposal", "proposal_rows", "ranking"),
    "Output": ("out", "force", "name", "max_file_bytes", "artifact_id"),
    "Work": ("device", "rows_per_chunk", "jobs", "verify", "plan"),
}


MOST_DEFAULT_JOBS = 8
"""A job takes up to about 75 MiB, and all of them shall stay below 1 GiB unless more is asked."""


def default_jobs() -> int:
    """Half the processors that this process may use, but no more than memory allows."""
    return max(1, min(MOST_DEFAULT_JOBS, len(os.sched_getaffinity(0)) // 2))


@click.command(
    cls=GroupedCommand,
    headings=HEADINGS,
    epilog="""\b
Examples:
  ninfer-convert build --model Qwen3.8-27B --recipe qwen3_8_27b \\
      --components text,vision,mtp --out qwen3_8_27b.ninfer
  ninfer-convert --model Qwen3.8-27B --recipe qwen3_8_27b --plan
  ninfer-convert --model DIR --recipe mine.py:configure --out mine.ninfer""",
)
@click.option(
    "--model",
    required=True,
    metavar="DIR|ID",
    help="Checkpoint folder: config.json, Safetensors weights, tokenizer files; or a Hub id "
    "org/name[@revision].",
)
@click.option(
    "--recipe",
    required=True,
    metavar="NAME|FILE",
    help="Built-in recipe, or FILE.py[:FUNC] with a function configure(model, recipe, sources).",
)
@click.option(
    "--override",
    multiple=True,
    metavar="FILE",
    help="FILE.py[:FUNC] that runs after the recipe; repeatable.",
)
@click.option(
    "--source",
    multiple=True,
    metavar="NAME=PATH",
    help="What a recipe reads beside the model: a Safetensors file or folder, a .gguf or .ninfer "
    "file, or a Hub id; opened when the recipe asks for it; repeatable.",
)
@click.option(
    "--components",
    default="text",
    show_default=True,
    metavar="LIST",
    help=f"Comma list of {', '.join(COMPONENTS)}; dflash and dflash2 need --source of that name.",
)
@click.option(
    "--resource",
    multiple=True,
    metavar="ROLE=PATH",
    help="File to store instead of the checkpoint's own, for example "
    "chat_template.jinja=t.jinja; repeatable.",
)
@click.option(
    "--proposal", is_flag=True, help="Add a reduced output head for drafts, the proposal head."
)
@click.option(
    "--proposal-rows",
    type=click.IntRange(min=1),
    default=131072,
    show_default=True,
    help="Tokens of the proposal head.",
)
@click.option(
    "--ranking",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Token counts that choose them: rows of int64, the totals first. Not needed if the head "
    "has all tokens.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Artifact to write.")
@click.option("--force", is_flag=True, help="Replace an existing artifact and its report.")
@click.option("--name", metavar="TEXT", help="Public model name.  [default: from the checkpoint]")
@click.option(
    "--max-file-bytes",
    type=SIZE,
    default=32_000_000_000,
    show_default=True,
    help="Longest file; more goes to FILE.part-0001 and so on.",
)
@click.option(
    "--artifact-id",
    metavar="HEX",
    help="32 hex digits that identify the artifact, for reproducible bytes.  [default: random]",
)
@device_option
@rows_per_chunk_option
@click.option(
    "--jobs",
    "--workers",
    type=click.IntRange(min=1),
    help="Worker threads.  [default: half the processors, at most 8]",
)
@click.option(
    "--verify",
    type=click.Choice(["none", "hash", "sample", "full"]),
    default="sample",
    show_default=True,
    help="Read the result back and compare: its bytes with what was written, or some rows of every object, or all, with the source.",
)
@click.option("--plan", is_flag=True, help="Show what would be written; write nothing.")
@common_options(SCHEMA)
def build(terminal: Terminal, **options: Any) -> None:
    """Convert a checkpoint to an artifact.

    Beside FILE a report FILE.conversion.json is written. Existing files are not replaced unless
    --force is given, and a failure or an interruption leaves nothing behind.
    """
    keep_blas_on_one_thread()
    from ninfer_quant.pipeline.conversion import plan_conversion

    request = _request(options)
    run_options = None if options["plan"] else _run_options(options)
    conversion = plan_conversion(request, needs_weights=not options["plan"])
    for change in conversion.resources.changes:
        terminal.detail(change.message)
    if run_options is None:
        _show_plan(terminal, conversion)
    else:
        convert_planned(terminal, conversion, run_options)


def _request(options: dict[str, Any]) -> ConversionRequest:
    from ninfer_quant.pipeline.conversion import ConversionRequest
    from ninfer_quant.recipes.loading import load_recipe
    from ninfer_quant.sources.open import locate

    if options["name"] == "":
        raise UsageError("--name must not be empty")
    _refuse_bytes(options)
    device = "cpu" if options["plan"] else choose_device(options["device"])
    return ConversionRequest(
        model=locate(options["model"], with_weights=not options["plan"]),
        recipe=load_recipe(options["recipe"]),
        overrides=tuple(load_recipe(reference) for reference in options["override"]),
        sources=parse_sources(options["source"]),
        proposal=_proposal(options),
        components=parse_components(options["components"]),
        resources=_resources(options["resource"]),
        name=options["name"],
        rows_per_chunk=choose_rows_per_chunk(options["rows_per_chunk"], device),
        device=device,
        max_file_bytes=options["max_file_bytes"],
    )


def _run_options(options: dict[str, Any]) -> RunOptions:
    from ninfer_quant.pipeline.run import RunOptions

    if options["out"] is None:
        raise UsageError("--out is missing", hint="give --out FILE, or --plan to write nothing")
    output = options["out"].expanduser()
    if output.name in ("", ".."):
        raise UsageError(f"--out {str(output)!r} names no file", hint="for example model.ninfer")
    return RunOptions(
        output=output,
        force=options["force"],
        jobs=options["jobs"] or default_jobs(),
        verify=options["verify"],
        artifact_id=_artifact_id(options["artifact_id"]),
    )


def _refuse_bytes(options: dict[str, Any]) -> None:
    """Refuse names that are not text, because artifact and report are UTF-8 and hold them."""
    named = [(option, options[option]) for option in ("model", "recipe", "name", "out")]
    named += [
        (option, item) for option in ("override", "source", "resource") for item in options[option]
    ]
    # The folder's own name is stored, also when it is given as "." or through a link.
    named.append(("model", Path(options["model"]).expanduser().resolve().name))
    for option, value in named:
        if value is not None and not is_text(str(value)):
            raise UsageError(f"--{option}: {str(value)!r} is not UTF-8", hint="rename it")


def parse_components(text: str) -> tuple[str, ...]:
    """Names of a comma list of components.

    Raises:
        UsageError: One is unknown or given twice, or text is not among them.
    """
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COMPONENTS:
            raise UsageError(
                f"--components {text}: unknown component {name!r}",
                hint=f"components are {', '.join(COMPONENTS)}",
            )
    if len(set(names)) != len(names):
        raise UsageError(f"--components {text} names a component twice")
    if "text" not in names:
        raise UsageError(f"--components {text} lacks text, which every artifact has")
    return names


def parse_sources(assignments: tuple[str, ...]) -> dict[str, str]:
    """Paths or Hub ids of NAME=PATH assignments, by name.

    Raises:
        UsageError: One is no assignment, or a name is given twice or reserved.
    """
    sources: dict[str, str] = {}
    for assignment in assignments:
        name, equals, reference = assignment.partition("=")
        if not (name and equals and reference):
            raise UsageError(f"--source {assignment!r} is not NAME=PATH")
        if name == "base":
            raise UsageError("--source base: that is the name of --model")
        if name in sources:
            raise UsageError(f"--source {name} is given twice")
        sources[name] = reference
    return sources


def _proposal(options: dict[str, Any]) -> ProposalRequest | None:
    from ninfer_quant.recipes.proposal import ProposalRequest

    if not options["proposal"]:
        if options["ranking"] is not None:
            raise UsageError("--ranking is for --proposal", hint="give --proposal too")
        return None
    ranking = options["ranking"]
    return ProposalRequest(
        options["proposal_rows"], None if ranking is None else ranking.expanduser()
    )


def _resources(assignments: tuple[str, ...]) -> dict[str, Path]:
    resources: dict[str, Path] = {}
    for assignment in assignments:
        role, equals, path = assignment.partition("=")
        if not (role and equals and path):
            raise UsageError(f"--resource {assignment!r} is not ROLE=PATH")
        if role in resources:
            raise UsageError(f"--resource {role} is given twice")
        resources[role] = Path(path).expanduser()
    return resources


def _artifact_id(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        artifact_id = bytes.fromhex(text)
    except ValueError:
        artifact_id = b""
    if len(text) != 32 or len(artifact_id) != 16:
        raise UsageError(f"--artifact-id {text!r} is not 32 hex digits")
    return artifact_id


def _show_plan(terminal: Terminal, conversion: Conversion) -> None:
    from ninfer_quant.cli.plan_table import plan_document, plan_lines

    for warning in conversion.warnings:
        terminal.warn(warning)
    document = plan_document(conversion)
    if terminal.json:
        terminal.print_json(document)
    else:
        click.echo("\n".join(plan_lines(document)))


def convert_planned(terminal: Terminal, conversion: Conversion, options: RunOptions) -> None:
    """Run a planned conversion with a progress bar, and say what was written."""
    from ninfer_quant.pipeline.run import check_outputs, run_conversion, work_bytes

    # Before the progress bar says that something has begun.
    check_outputs(conversion, options)
    total = work_bytes(conversion, options)
    with Progress(terminal, "converting", total=total, unit="bytes") as progress:
        report = run_conversion(conversion, options, progress.advance)
    for warning in report["warnings"]:
        terminal.warn(warning)
    terminal.note(
        f"wrote {options.output}: {format_bytes(report['payload_bytes'])} in "
        f"{report['objects']} objects, {report['seconds']:.1f} s"
    )
    if terminal.json:
        terminal.print_json(_summary(report))


def _summary(report: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "output",
        "name",
        "artifact_id",
        "parameters",
        "uses",
        "objects",
        "formats",
        "payload_bytes",
        "files",
        "verify",
        "warnings",
        "seconds",
    )
    return {key: report[key] for key in keys}
