"""``ninfer-quant compare``: what quantization did to every parameter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ninfer_format.commandline import GroupedCommand, Progress, Terminal, common_options
from ninfer_format.errors import ExitCode, NInferError, UsageError
from ninfer_quant.cli.schema import QUANT_SCHEMA

if TYPE_CHECKING:
    from ninfer_quant.quality.agreement import Agreement
    from ninfer_quant.quality.compare import ParameterComparison

METRICS = ("relative_frobenius", "max_abs_error", "cosine_distance", "bits_per_weight")
"""What --fail-above takes; all of them are better when they are smaller."""
_COLUMNS = ("parameter", "shape", "format", "bits", "rel. error", "max error", "SQNR dB", "cosine")


class TooDifferentError(NInferError):
    """Parameters are farther apart than was allowed."""

    code = "too_different"


@click.command(
    cls=GroupedCommand,
    headings={"What": ("reference", "selectors", "rows"), "Result": ("fail_above",)},
    short_help="Errors of every parameter between two models.",
    epilog="""\b
Examples:
  ninfer-quant compare Qwen3.8-27B q4.ninfer
  ninfer-quant compare a.ninfer b.ninfer --reference Qwen3.8-27B
  ninfer-quant compare bf16.ninfer q4.ninfer --select '*/mlp/*' --rows 64 \\
      --fail-above relative_frobenius=0.1""",
)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="What both A and B are measured against.  [default: A, for B]",
)
@click.option(
    "--select",
    "selectors",
    multiple=True,
    metavar="GLOB",
    help="Parameters by shell pattern over whole names; repeatable.  [default: all]",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    help="Rows of every parameter that are compared, evenly spaced.  [default: all]",
)
@click.option(
    "--fail-above",
    multiple=True,
    metavar="METRIC=V",
    help=f"End with 1 if a parameter of B is above it: {', '.join(METRICS)}; repeatable.",
)
@common_options(QUANT_SCHEMA)
def compare(
    terminal: Terminal,
    first: Path,
    second: Path,
    reference: Path | None,
    selectors: tuple[str, ...],
    rows: int | None,
    fail_above: tuple[str, ...],
) -> int:
    """Show how far the parameters of B are from those of A.

    A, B and DIR are artifacts or checkpoint folders of one model.
    """
    from ninfer_format.workers import worker_count
    from ninfer_quant.quality.compare import Comparison
    from ninfer_quant.quality.compared_model import open_compared
    from ninfer_quant.sources.open import locate

    limits = [_limit(text) for text in fail_above]
    paths = [first, second] if reference is None else [reference, first, second]
    models = [open_compared(locate(str(path))) for path in paths]
    comparison = Comparison(models, selectors=selectors, rows=rows)
    if comparison.only_some:
        terminal.warn(
            f"parameters that not all have ({len(comparison.only_some)}): "
            f"{', '.join(comparison.only_some)}"
        )
    with Progress(terminal, "comparing", total=comparison.total_elements) as progress:
        found = comparison.run(jobs=worker_count(), advance=progress.advance)
    sides = ("a", "b") if reference is None else ("reference", "a", "b")
    document: dict[str, Any] = {
        **{name: str(path) for name, path in zip(sides, paths, strict=True)},
        "parameters": [_row(item, sides) for item in found],
        "total": _total(found, sides),
        "only_some": comparison.only_some,
    }
    failure = _failure(document["parameters"], limits)
    if terminal.json:
        terminal.print_json(document, failure=failure)
    else:
        click.echo("\n".join(_lines(document, sides[1:])))
        if failure is not None:
            terminal.fail(failure)
    return ExitCode.OK if failure is None else ExitCode.FAILED


def _limit(text: str) -> tuple[str, float]:
    metric, _, value = text.partition("=")
    if metric not in METRICS:
        raise UsageError(
            f"--fail-above {text!r}: unknown metric {metric!r}",
            hint=f"METRIC=V with one of {', '.join(METRICS)}",
        )
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise UsageError(f"--fail-above {text!r}: {value!r} is not a number from 0 on")
    return metric, limit


def _row(item: ParameterComparison, sides: tuple[str, ...]) -> dict[str, Any]:
    row: dict[str, Any] = {"parameter": item.name, "shape": list(item.shape), "rows": item.rows}
    for name, side in zip(sides, item.sides, strict=True):
        row[name] = {"format": side.format, "bits_per_weight": side.bits_per_weight}
    for name, agreement in zip(sides[1:], item.agreements, strict=True):
        row[name] |= _errors(agreement)
    return row


def _errors(agreement: Agreement) -> dict[str, float | None]:
    cosine = agreement.cosine
    return {
        "relative_frobenius": agreement.relative_frobenius,
        "max_abs_error": agreement.max_error,
        "sqnr_db": agreement.sqnr_db,
        "cosine": cosine,
        "cosine_distance": 1.0 if cosine is None else 1.0 - cosine,
    }


def _total(found: list[ParameterComparison], sides: tuple[str, ...]) -> dict[str, Any]:
    from ninfer_quant.quality.agreement import Agreement

    total: dict[str, Any] = {}
    for index, name in enumerate(sides):
        weights = [(item.sides[index].bits_per_weight, item.sides[index].source) for item in found]
        bits = [None if bit is None else bit * source.num_elements for bit, source in weights]
        known = [bit for bit in bits if bit is not None]
        elements = sum(source.num_elements for _, source in weights)
        total[name] = {
            "bits_per_weight": sum(known) / elements if len(known) == len(bits) else None
        }
        if index:
            pooled = Agreement()
            for item in found:
                pooled.merge(item.agreements[index - 1])
            total[name] |= _errors(pooled)
    return total


def _failure(
    rows: list[dict[str, Any]], limits: list[tuple[str, float]]
) -> TooDifferentError | None:
    for metric, limit in limits:
        above = [row for row in rows if (row["b"][metric] or 0.0) > limit]
        if above:
            worst = max(above, key=lambda row: float(row["b"][metric]))
            return TooDifferentError(
                f"{metric} is above {limit:g} (parameters: {len(above)}), "
                f"most in {worst['parameter']}: {worst['b'][metric]:.6g}"
            )
    return None


def _lines(document: dict[str, Any], sides: tuple[str, ...]) -> list[str]:
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for side in sides:
        label = f" ({side})" if len(sides) > 1 else ""
        rows += [
            (row["parameter"] + label, "×".join(map(str, row["shape"])) or "scalar", *cells)
            for row in document["parameters"]
            for cells in [(row[side]["format"], *_numbers(row[side]))]
        ]
        rows.append((f"all{label}", "", "", *_numbers(document["total"][side])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return [_aligned(row, widths) for row in rows]


def _numbers(values: dict[str, float | None]) -> tuple[str, ...]:
    formats = {
        "bits_per_weight": ".3f",
        "relative_frobenius": ".5f",
        "max_abs_error": ".3g",
        "sqnr_db": ".2f",
        "cosine": ".7f",
    }
    return tuple(
        "-" if (value := values[name]) is None else format(value, spec)
        for name, spec in formats.items()
    )


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.ljust(width) if column < 3 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
