"""``ninfer-quant plan``: which format for which matrix, if the model shall have a given size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ninfer_format.commandline import (
    GroupedCommand,
    Progress,
    Terminal,
    common_options,
    new_output,
    refuse_existing,
)
from ninfer_format.errors import UsageError
from ninfer_quant.cli.build import default_jobs, parse_components
from ninfer_quant.cli.device import choose_device, device_option, jobs_option
from ninfer_quant.cli.schema import QUANT_SCHEMA

if TYPE_CHECKING:
    from ninfer_quant.quality.bit_plan import BitPlan, PlannedObject
    from ninfer_quant.quality.sensitivity import Metric

FORMATS = "q4_g64_fp16,nvfp4,q5_g64_fp16,q6_g64_fp16,q8_g32_fp16,bf16"
_COLUMNS = ("parameters", "shape", "format", "bits", "error", "weight", "next saves", "metric")


@click.command(
    cls=GroupedCommand,
    headings={
        "Target": ("target_bpw", "components", "formats"),
        "Sensitivity": ("metric", "calibration", "rows"),
        "Output": ("out", "force"),
        "Work": ("device", "jobs"),
    },
    short_help="Allocate formats to meet a size.",
    epilog="""\b
Examples:
  ninfer-quant plan Qwen3.8-27B --target-bpw 4.8
  ninfer-quant plan Qwen3.8-27B --target-bpw 5 --calibration c.safetensors \\
      --out mine.py
  ninfer-convert --model Qwen3.8-27B --recipe mine.py --out mine.ninfer""",
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--target-bpw",
    type=click.FloatRange(min=0, min_open=True, max=64),
    required=True,
    help="Most bits per weight over all tensors, scales and padding included.",
)
@click.option(
    "--components",
    default="text",
    show_default=True,
    metavar="LIST",
    help="Comma list of components of the artifact to be.",
)
@click.option(
    "--formats",
    default=FORMATS,
    metavar="LIST",
    help="Comma list of formats to choose from: q4_g64_fp16, nvfp4, q5_g64_fp16, q6_g64_fp16, "
    "q8_g32_fp16, bf16.  [default: all]",
)
@click.option(
    "--metric",
    type=click.Choice(["plain", "diagonal", "hessian"]),
    help="Relative squared error of the weights, of weights by the mean squares of their inputs, "
    "or of their products with the inputs.  [default: the best that --calibration allows]",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A calibration. With Hessians the recipe quantizes by error feedback and needs FILE.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=128),
    default=256,
    show_default=True,
    help="Rows of every matrix that are measured, evenly spaced.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="Write the plan as a recipe.",
)
@click.option("--force", is_flag=True, help="Replace an existing FILE.py.")
@device_option
@jobs_option
@common_options(QUANT_SCHEMA)
def plan(terminal: Terminal, **options: Any) -> None:
    """Choose a format for every matrix of the checkpoint MODEL.

    Matrices that are stored as one object get one format. The sum of their weighted errors is made
    as small as the size allows, which is never exceeded. An error in a layer weighs less than one
    in the output head, which works on the sum of what all layers give.
    """
    from ninfer_quant.quality.bit_plan import BitPlanner, PlanOptions
    from ninfer_quant.quality.planned_recipe import recipe_text
    from ninfer_quant.sources.open import locate

    out = options["out"]
    if out is None and options["force"]:
        raise UsageError("--force is for --out")
    if out is not None:
        refuse_existing(out, force=options["force"])
    target_bpw, calibration = options["target_bpw"], options["calibration"]
    calibration = None if calibration is None else calibration.expanduser().absolute()
    plan_options = PlanOptions(
        model=locate(options["model"]),
        components=parse_components(options["components"]),
        formats=tuple(dict.fromkeys(item.strip() for item in options["formats"].split(","))),
        metric=options["metric"] or _best_metric(calibration),
        calibration=calibration,
        rows=options["rows"],
        device=choose_device(options["device"]),
        jobs=options["jobs"] or default_jobs(),
    )
    planner = BitPlanner(plan_options)
    with Progress(terminal, "measuring", total=planner.steps) as progress:
        measured = planner.measure(progress.advance)
    planned = planner.plan(measured, target_bpw)
    if out is not None:
        with new_output(out, force=options["force"]) as file:
            file.write(recipe_text(planned, target_bpw).encode())
        terminal.note(f"wrote {out}")
    if terminal.json:
        terminal.print_json(_document(planned, target_bpw, out))
    else:
        click.echo("\n".join(_lines(planned, target_bpw)))


def _best_metric(calibration: Path | None) -> Metric:
    from ninfer_quant.calibration.records import CalibrationFile

    if calibration is None:
        return "plain"
    known = CalibrationFile(calibration)
    return "hessian" if all(map(known.has_hessian, known.inputs)) else "diagonal"


def _document(planned: BitPlan, target_bpw: float, out: Path | None) -> dict[str, Any]:
    return {
        "model": planned.model,
        "target_bpw": target_bpw,
        "bits_per_weight": planned.bits_per_weight,
        "tensor_bytes": planned.num_bytes,
        "fixed_bytes": planned.fixed_bytes,
        "error": planned.error,
        "last_saving_per_mib": planned.last_gain,
        "recipe": None if out is None else str(out),
        "objects": [_object(item) for item in planned.objects],
    }


def _object(item: PlannedObject) -> dict[str, Any]:
    known = item.sensitivity
    return {
        "parameters": list(known.parameters),
        "shape": list(known.shape),
        "metric": known.metric,
        "weight": item.weight,
        "format": item.chosen.format,
        "method": item.chosen.method,
        "bytes": item.chosen.num_bytes,
        "error": item.chosen.error,
        "next_saving_per_mib": item.next_gain,
        "candidates": [
            {"format": candidate.format, "bytes": candidate.num_bytes, "error": candidate.error}
            for candidate in known.candidates
        ],
    }


def _lines(planned: BitPlan, target_bpw: float) -> list[str]:
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for item in planned.objects:
        N, K = item.sensitivity.shape
        first, *others = item.sensitivity.parameters
        rows.append(
            (
                first + "".join(f", {name.rsplit('/', 1)[-1]}" for name in others),
                f"{N}×{K}",
                item.chosen.format,
                f"{8 * item.chosen.num_bytes / (N * K):.3f}",
                f"{item.chosen.error:.6f}",
                f"{item.weight:.4f}",
                "-" if item.next_gain is None else f"{item.next_gain:.6f}",
                item.sensitivity.metric,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    step = "no step"
    if planned.last_gain is not None:
        step = f"the last step saved {planned.last_gain:.6f} per MiB"
    lines += [
        f"{planned.bits_per_weight:.4f} bits per weight of {target_bpw:g}, {planned.num_bytes} "
        f"bytes; {planned.fixed_bytes} of them are not planned",
        f"error {planned.error:.6f} in all; {step}: larger formats for the others would save less "
        "or not fit",
    ]
    return lines
