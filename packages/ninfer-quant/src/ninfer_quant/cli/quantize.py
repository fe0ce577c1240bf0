"""What the commands share that store chosen matrices of a model in one format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ninfer_format.commandline import SIZE, Terminal
from ninfer_format.container.json_text import is_text
from ninfer_format.errors import UsageError
from ninfer_quant.cli.blas_threads import keep_blas_on_one_thread
from ninfer_quant.cli.device import (
    choose_device,
    choose_rows_per_chunk,
    device_option,
    jobs_option,
    rows_per_chunk_option,
)

if TYPE_CHECKING:
    from ninfer_quant.recipes.one_format import OneFormat

Command = TypeVar("Command", bound=Callable[..., Any])

HEADINGS = {
    "Output": ("components", "force", "name", "max_file_bytes"),
    "Work": ("device", "rows_per_chunk", "jobs", "verify"),
}
"""Headings of the options of `quantize_options`."""

_OPTIONS = (
    click.argument("source", type=click.Path(path_type=Path), metavar="IN"),
    click.argument("output", type=click.Path(path_type=Path), metavar="OUT.ninfer"),
    click.option(
        "--select",
        "selectors",
        multiple=True,
        metavar="GLOB",
        help="Projections by shell pattern over whole names, or any parameter by its full name; "
        "repeatable.  [default: those of the text model that fit, but for the small ones, routers "
        "and the output head]",
    ),
    click.option(
        "--components",
        default="text",
        show_default=True,
        metavar="LIST",
        help="Comma list of the components of a checkpoint folder to convert; an artifact keeps "
        "its own.",
    ),
    click.option("--force", is_flag=True, help="Replace an existing OUT.ninfer and its report."),
    click.option("--name", metavar="TEXT", help="Public model name.  [default: from IN]"),
    click.option(
        "--max-file-bytes",
        type=SIZE,
        default=32_000_000_000,
        show_default=True,
        help="Longest file; more goes to OUT.ninfer.part-0001 and so on.",
    ),
    device_option,
    rows_per_chunk_option,
    jobs_option,
    click.option(
        "--verify",
        type=click.Choice(["none", "hash", "sample", "full"]),
        default="sample",
        show_default=True,
        help="Read the result back and compare: its bytes with what was written, or some rows of every object, or all, with the source.",
    ),
)


def quantize_options(function: Command) -> Command:
    """Add the arguments IN and OUT and the options that all these commands have."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def quantize(terminal: Terminal, label: str, chosen: OneFormat, options: dict[str, Any]) -> None:
    """Write IN as OUT with the chosen matrices in another format.

    Args:
        terminal: Where to report.
        label: What reports call the recipe.
        chosen: What to store how.
        options: Values of `quantize_options`.

    Raises:
        UsageError: An option is wrong.
    """
    keep_blas_on_one_thread()
    from ninfer_quant.cli.build import convert_planned, default_jobs, parse_components
    from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
    from ninfer_quant.pipeline.requantize import plan_requantization
    from ninfer_quant.pipeline.run import RunOptions
    from ninfer_quant.sources.open import locate

    output = options["output"].expanduser()
    _check_names(output, options)
    model = locate(str(options["source"]))
    device = choose_device(options["device"])
    request = ConversionRequest(
        model=model,
        recipe=chosen.as_recipe(label),
        components=parse_components(options["components"]),
        name=options["name"],
        rows_per_chunk=choose_rows_per_chunk(options["rows_per_chunk"], device),
        device=device,
        max_file_bytes=options["max_file_bytes"],
    )
    is_artifact = model.suffix == ".ninfer"
    conversion = plan_requantization(request) if is_artifact else plan_conversion(request)
    for change in conversion.resources.changes:
        terminal.detail(change.message)
    run_options = RunOptions(
        output=output,
        force=options["force"],
        jobs=options["jobs"] or default_jobs(),
        verify=options["verify"],
    )
    convert_planned(terminal, conversion, run_options)


def _check_names(output: Path, options: dict[str, Any]) -> None:
    if output.name in ("", ".."):
        raise UsageError(f"{str(output)!r} names no file", hint="for example model.ninfer")
    if options["name"] == "":
        raise UsageError("--name must not be empty")
    for value in (str(output), options["name"] or "", str(options["source"])):
        if not is_text(value):
            raise UsageError(f"{value!r} is not UTF-8", hint="rename it")
