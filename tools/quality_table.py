"""Measure the recipes on the tiny model and write docs/quality.md and its picture.

    python tools/quality_table.py WORK_FOLDER            # about half an hour on one core
    python tools/quality_table.py WORK_FOLDER --check    # exit 1 if a claim of the page is not met

The work folder keeps what is finished, so that the command can be given again. Methods that need a
calibration get one from the built-in corpus: nothing of the texts and the chats that are measured is
in it. There are two texts, from both halves of one file. Methods were improved while looking at
the first; the second is there to show whether that was good for the first alone, and is not to be looked
at for another reason.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# The matrices are small: more threads would wait for each other. NumPy reads it when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from ninfer_format.commandline import Progress, Terminal
from ninfer_format.commandline.progress import Unit
from ninfer_quant.calibration.corpus_rows import read_corpus
from ninfer_quant.calibration.job import CalibrationOptions, calibrate, work_steps
from ninfer_quant.calibration.model import open_model
from ninfer_quant.quality.bit_plan import BitPlanner, PlanOptions
from ninfer_quant.quality.planned_recipe import recipe_text
from ninfer_quant.quality.sweep import SweepOptions, run_sweep
from ninfer_quant.quality.sweep_picture import draw_sweep
from ninfer_quant.quality.tasks import read_tasks
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.loading import Configure, LoadedRecipe, load_recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.official.assignments import keep_controls_direct, projections, quantize
from ninfer_quant.recipes.official.formats import NVFP4, Q4, Q8
from ninfer_quant.sources.store import WeightStore

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/tiny-model"
PAGE = ROOT / "docs/quality.md"
PICTURE = ROOT / "docs/images/quality.png"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"

CHUNKS = 64
"""Windows of either text."""
ROWS, COLUMNS = 250, 512
"""Most rows and tokens of a row of the calibration."""
CALIBRATED = ("q4 gptq", "nvfp4 gptq")

TARGETS = (4.7, 5.3)
"""Bits per weight of the planned recipes."""

GPTQ_GAIN = 0.25
PREDICTION_SLACK = 1.25
"""How much more divergence than its weight error predicts a recipe may have."""
VOCABULARY = ("text/token_embedding", "text/output_head")


def one_method(format: str, method: str, calibration: Path | None = None) -> Configure:
    """All projections of the layers by one method; embedding and head Q8, small ones BF16.

    Args:
        format: Format of the projections.
        method: How they are quantized.
        calibration: What the method is told.
    """

    def configure(model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
        quantize(recipe, list(VOCABULARY), Q8)
        parameters = {} if calibration is None else {"calibration": str(calibration)}
        recipe.assign(
            projections(model, "text/layers/*"),
            format=format,
            method=method,
            parameters=parameters,
        )
        recipe.assign("text/layers/*/gdn/[ab]_projection", parameters={})
        keep_controls_direct(model, recipe)

    return configure


def all_recipes(calibration: Path) -> dict[str, Configure]:
    """The recipes by the name that the table calls them.

    Args:
        calibration: For the methods that need one.
    """
    return {
        "q8": one_method(Q8, "grouped_absmax"),
        "q6 mlp (qwen3_8_27b_q6)": load_recipe("qwen3_8_27b_q6").configure,
        "groupwise (qwen3_8_27b)": load_recipe("qwen3_8_27b").configure,
        "q4 absmax": one_method(Q4, "grouped_absmax"),
        "q4 mse": one_method(Q4, "grouped_mse"),
        "q4 gptq": one_method(Q4, "grouped_gptq", calibration),
        "nvfp4 absmax": one_method(NVFP4, "nvfp4_absmax"),
        "nvfp4 ratio": one_method(NVFP4, "nvfp4_ratio"),
        "nvfp4 four-over-six": one_method(NVFP4, "nvfp4_four_over_six"),
        "nvfp4 mse": one_method(NVFP4, "nvfp4_mse"),
        "nvfp4 gptq": one_method(NVFP4, "nvfp4_gptq", calibration),
    }


def make_calibration(folder: Path, terminal: Terminal) -> Path:
    """The calibration, from the built-in corpus; made once."""
    path = folder / "calibration.safetensors"
    if not path.exists():
        with open_model(DATA / "checkpoint") as opened:
            text = read_corpus(None, opened.frontend, rows=ROWS, cols=COLUMNS)
            with Progress(terminal, "calibrating", total=work_steps(opened, text)) as progress:
                calibrate(opened, text, CalibrationOptions(path), progress.advance)
    return path


def plan_recipes(folder: Path, calibration: Path, terminal: Terminal) -> dict[str, LoadedRecipe]:
    """Recipes that `ninfer-quant plan` would write for `TARGETS`; made once."""
    paths = {target: folder / f"plan-{target}.py" for target in TARGETS}
    if not all(path.exists() for path in paths.values()):
        options = PlanOptions(DATA / "checkpoint", metric="hessian", calibration=calibration)
        planner = BitPlanner(options)
        with Progress(terminal, "planning", total=planner.steps) as progress:
            measured = planner.measure(progress.advance)
        for target, path in paths.items():
            plan = planner.plan(measured, target)
            path.write_text(recipe_text(plan, target), encoding="utf-8")
    return {f"planned, {target} bits": load_recipe(str(path)) for target, path in paths.items()}


def second_text(folder: Path) -> Path:
    """The second half of the held-out text, from the first line on that begins there."""
    text = (DATA / "heldout.txt").read_text(encoding="utf-8")
    path = folder / "second-text.txt"
    path.write_text(text[text.index("\n", len(text) // 2) + 1 :], encoding="utf-8")
    return path


def measure(folder: Path, terminal: Terminal, most_tasks: int | None) -> list[dict[str, Any]]:
    """Sweep over all recipes; what the second text says is in each row's ``second``."""
    calibration = make_calibration(folder, terminal)
    digest = hashlib.sha256(calibration.read_bytes()).hexdigest()
    tasks_file = DATA / "tasks-eval.jsonl"
    options = SweepOptions(
        model=DATA / "checkpoint",
        recipes={
            name: LoadedRecipe(name, configure, sha256=digest if name in CALIBRATED else None)
            for name, configure in all_recipes(calibration).items()
        }
        | plan_recipes(folder, calibration, terminal),
        text=DATA / "heldout.txt",
        work_folder=folder / "sweep",
        chunks=CHUNKS,
        tasks_file=tasks_file,
        tasks=read_tasks(tasks_file, most_tasks),
    )
    second = replace(
        options,
        text=second_text(folder),
        work_folder=folder / "second-sweep",
        tasks_file=None,
        tasks=(),
    )

    def phase(work: str, total: int, unit: Unit) -> Progress:
        return Progress(terminal, work, total=total, unit=unit)

    rows, second_rows = run_sweep(options, phase), run_sweep(second, phase)
    return [row | {"second": other} for row, other in zip(rows, second_rows, strict=True)]


def divergence(row: Mapping[str, Any]) -> float:
    """Mean divergence of a recipe, 0 for the reference."""
    return 0.0 if row["divergence"] is None else float(row["divergence"]["mean_kl"])


def per_squared_error(row: Mapping[str, Any]) -> float:
    """Divergence per squared relative error of the weights."""
    return divergence(row) / float(row["relative_frobenius"]) ** 2


def claims(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """What the page claims, with figures, and whether it is so."""
    known = {row["recipe"]: row for row in rows}
    found = []
    for kind in ("q4", "nvfp4"):
        absmax, mse, gptq = (known[f"{kind} {name}"] for name in ("absmax", "mse", "gptq"))
        sizes = {row["bits_per_weight"] for row in (absmax, mse, gptq)}
        for row, least in ((mse, 0.0), (gptq, GPTQ_GAIN)):
            gains = (
                1 - divergence(row) / divergence(absmax),
                1 - divergence(row["second"]) / divergence(absmax["second"]),
            )
            found.append(
                (
                    f"{row['recipe']} has {100 * gains[0]:.1f} % less divergence than "
                    f"{absmax['recipe']} at equal bits, {100 * gains[1]:.1f} % on the second text",
                    min(gains) > least and len(sizes) == 1,
                )
            )
    plain = known["q8"]
    for row in rows:
        if row["divergence"] is not None:
            ratio = per_squared_error(row) / per_squared_error(plain)
            found.append(
                (
                    f"{row['recipe']}: {ratio:.2f} of the divergence that its weight error predicts",
                    ratio <= PREDICTION_SLACK,
                )
            )
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table and the claims in Markdown."""
    lines = [
        "| recipe | MiB | bits per weight | weight error | perplexity | mean KL | 99 % KL "
        "| same top token | chats right | KL / error² | second text: mean KL |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        found, tasks = row["divergence"], row["tasks"]
        compared = ["–"] * 3
        if found is not None:
            compared = [
                f"{found['mean_kl']:.5f}",
                f"{found['p99_kl']:.4f}",
                f"{100 * found['top1_agreement']:.2f} %",
            ]
        cells = [
            row["recipe"],
            f"{row['file_bytes'] / 2**20:.2f}",
            f"{row['bits_per_weight']:.3f}",
            f"{row['relative_frobenius']:.4f}",
            f"{row['perplexity']:.4f}",
            *compared,
            f"{tasks['correct']} of {tasks['answered']}",
            "–" if found is None else f"{per_squared_error(row):.2f}",
            "–" if found is None else f"{divergence(row['second']):.5f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    lines += [f"- {text}{'' if holds else ' (not as claimed)'}" for text, holds in claims(rows)]
    return "\n".join(lines)


def main() -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="keeps artifacts and results")
    parser.add_argument("--tasks", type=int, help="most chats to answer")
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a claim")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    terminal = Terminal(schema="quality-table/1")
    rows = measure(arguments.folder, terminal, arguments.tasks)
    failed = [text for text, holds in claims(rows) if not holds]
    for text in failed:
        print(f"not as claimed: {text}", file=sys.stderr)
    if not arguments.check:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        page = f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"
        PAGE.write_text(page, encoding="utf-8")
        draw_sweep(PICTURE, rows, force=True)
        print(f"wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
