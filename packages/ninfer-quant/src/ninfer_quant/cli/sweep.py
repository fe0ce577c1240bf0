"""``ninfer-quant sweep``: several recipes on one model, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ninfer_format.commandline import (
    GroupedCommand,
    Progress,
    Terminal,
    common_options,
    refuse_existing,
)
from ninfer_format.errors import UsageError
from ninfer_quant.cli.build import default_jobs, parse_sources
from ninfer_quant.cli.device import choose_device, device_option, jobs_option
from ninfer_quant.cli.schema import QUANT_SCHEMA

if TYPE_CHECKING:
    from ninfer_quant.quality.sweep import SweepOptions

_COLUMNS = ("recipe", "MiB", "bits", "rel. error", "perplexity", "KL mean", "KL 99 %", "same top")


@click.command(
    cls=GroupedCommand,
    headings={
        "Recipes": ("recipes", "source"),
        "Measures": ("text", "context", "chunks", "tasks_file", "tasks"),
        "Output": ("work_dir", "picture", "force"),
        "Work": ("device", "jobs"),
    },
    short_help="Size and quality of several recipes on one model.",
    epilog="""\b
Examples:
  ninfer-quant sweep Qwen3.8-27B --recipes qwen3_8_27b,qwen3_8_27b_q6 \\
      --text heldout.txt --chunks 64 --work-dir sweep --picture sweep.png
  ninfer-quant sweep DIR --recipes mine.py:small,mine.py:large \\
      --text heldout.txt --tasks-file tasks.jsonl --work-dir sweep""",
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--recipes",
    required=True,
    metavar="A,B,...",
    help="Built-in recipes, or FILE.py[:FUNC]; the model in BF16 is always measured too.",
)
@click.option(
    "--source",
    multiple=True,
    metavar="NAME=PATH",
    help="What recipes read beside the model; repeatable.",
)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="UTF-8 text to predict.",
)
@click.option(
    "--context",
    type=click.IntRange(min=4),
    default=512,
    show_default=True,
    help="Tokens of a window; the second half of each is scored.",
)
@click.option("--chunks", type=click.IntRange(min=1), help="Most windows.  [default: all]")
@click.option(
    "--tasks-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Chats to answer: JSON lines of objects with messages and a list accept of right answers.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    help="Most chats of it, evenly spaced.  [default: all]",
)
@click.option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Keeps artifacts and results; given again, the command goes on where it was.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw size against divergence as .png, .svg or .pdf; needs matplotlib.",
)
@click.option("--force", is_flag=True, help="Replace an existing picture.")
@device_option
@jobs_option
@common_options(QUANT_SCHEMA)
def sweep(terminal: Terminal, **options: Any) -> None:
    """Convert the checkpoint MODEL with several recipes and measure what each costs.

    Every artifact predicts the text and answers the chats, on the CPU. KL is the divergence of its
    predictions from those of the model in BF16.
    """
    from ninfer_quant.quality.sweep import run_sweep
    from ninfer_quant.quality.sweep_picture import check_picture, draw_sweep

    picture = options["picture"]
    if picture is not None:
        check_picture(picture)
        refuse_existing(picture, force=options["force"])
    elif options["force"]:
        raise UsageError("--force is for --picture")
    sweep_options = _sweep_options(options)
    rows = run_sweep(
        sweep_options, lambda work, total, unit: Progress(terminal, work, total=total, unit=unit)
    )
    if picture is not None:
        draw_sweep(picture, rows, force=options["force"])
        terminal.note(f"wrote {picture}")
    if terminal.json:
        terminal.print_json({"work_dir": str(options["work_dir"]), "rows": rows})
    else:
        click.echo("\n".join(sweep_lines(rows)))


def _sweep_options(options: Mapping[str, Any]) -> SweepOptions:
    from ninfer_quant.quality.sweep import SweepOptions, name_recipes
    from ninfer_quant.quality.tasks import read_tasks
    from ninfer_quant.recipes.loading import load_recipe
    from ninfer_quant.sources.open import locate

    tasks_file, most = options["tasks_file"], options["tasks"]
    if tasks_file is None and most is not None:
        raise UsageError("--tasks is for --tasks-file")
    references = [item.strip() for item in options["recipes"].split(",") if item.strip()]
    if not references:
        raise UsageError("--recipes names no recipe")
    named = name_recipes(references)
    return SweepOptions(
        model=locate(options["model"]),
        recipes={name: load_recipe(reference) for name, reference in named.items()},
        text=options["text"],
        work_folder=options["work_dir"].expanduser(),
        context=options["context"],
        chunks=options["chunks"],
        tasks_file=tasks_file,
        tasks=() if tasks_file is None else read_tasks(tasks_file, most),
        sources=parse_sources(options["source"]),
        device=choose_device(options["device"]),
        jobs=options["jobs"] or default_jobs(),
    )


def sweep_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of a sweep."""
    has_tasks = any(row["tasks"] is not None for row in rows)
    cells: list[tuple[str, ...]] = [(*_COLUMNS, "tasks") if has_tasks else _COLUMNS]
    cells += [_cells(row, has_tasks=has_tasks) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        )
        for line in cells
    ]


def _cells(row: Mapping[str, Any], *, has_tasks: bool) -> tuple[str, ...]:
    divergence = row["divergence"]
    compared = ("-", "-", "-")
    if divergence is not None:
        compared = (
            f"{divergence['mean_kl']:.5f}",
            f"{divergence['p99_kl']:.4f}",
            f"{100 * divergence['top1_agreement']:.2f} %",
        )
    cells = (
        row["recipe"],
        f"{row['file_bytes'] / 2**20:.2f}",
        f"{row['bits_per_weight']:.3f}",
        f"{row['relative_frobenius']:.5f}",
        f"{row['perplexity']:.4f}",
        *compared,
    )
    return (*cells, _accuracy(row)) if has_tasks else cells


def _accuracy(row: Mapping[str, Any]) -> str:
    tasks = row["tasks"]
    return "-" if tasks is None else f"{tasks['correct']}/{tasks['answered']}"
