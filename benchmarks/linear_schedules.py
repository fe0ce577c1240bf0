"""Times many schedules of `linear` on this machine's GPU and keeps the best ones.

    python benchmarks/linear_schedules.py --write packages/.../ops/linear/tuned_skinny.py
    python benchmarks/linear_schedules.py --columns 16,32 --matrices gate_up,lm_head

The first form writes the table of the skinny kernel; it has to measure every format and matrix at
1, 4 and 8 columns, each alone; entries that were chosen in a layer's chain of launches are lost. Without
``--write`` the best three schedules of each case are printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from ninfer_runtime.bench.ceilings import Ceilings, measure_ceilings
from ninfer_runtime.bench.linear import LARGEST_ERROR, LinearBench, LinearCase
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.ops.linear import tuned_skinny
from ninfer_runtime.ops.linear.cases import MODEL_SHAPES, WEIGHT_FORMATS
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.schedule import (
    MEDIUM_COLUMNS,
    SKINNY_COLUMNS,
    X_IN_SHARED,
    Medium,
    Problem,
    Schedule,
    Skinny,
    Wide,
    problem_of,
    x_rows_of,
)
from ninfer_runtime.ops.linear.tuned_skinny import tile_class
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS


def candidates(problem: Problem, target: Target) -> Iterator[Schedule]:
    every = list[Schedule](
        skinny(problem, target) if problem.columns <= SKINNY_COLUMNS else wide(problem, target)
    )
    for schedule in dict.fromkeys(every):
        if schedule.fits(problem, target):
            yield schedule


BLOCKS = {
    4: ((3, 3), (4, 4)),
    8: ((1, 1), (2, 2), (2, 3), (3, 3), (4, 4)),
    16: ((1, 1), (2, 2)),
}
"""Blocks for each SM, and blocks that shall fit there with those of the next kernel, by warps."""

MOST_IN_REGISTERS = 10
"""Records of x that a warp may keep there: 8 registers each."""


def skinny(problem: Problem, target: Target) -> Iterator[Skinny]:
    """Schedules of one block for itself and of two that split K."""
    x_rows = x_rows_of(problem.columns, target)
    for warps in (4, 8, 16) if x_rows == 1 else (8, 16):
        for blocks, resident in BLOCKS[warps]:
            yield from staged(problem, Skinny(x_rows, warps, 0, 0, 0, 1, blocks, 0, resident))
    if problem.records > 160:
        for warps in (8, 16):
            yield from staged(problem, Skinny(x_rows, warps, 0, 0, 0, splits=2))


def staged(problem: Problem, schedule: Skinny) -> Iterator[Skinny]:
    """A schedule with rings of different sizes, and x in different places."""
    size = problem.record_format.record_bytes
    count, rest = divmod(problem.records, schedule.splits * schedule.warps)
    most = count + (rest > 0)
    if not count or most > (24 if rest == 0 else MOST_IN_REGISTERS):
        return
    for stage in sorted({-(-most // parts) for parts in range(1, most + 1)}):
        if stage < most and not 2000 <= stage * size <= 9000:
            continue
        last = 0 if rest else count - (-(-count // stage) - 1) * stage
        places = [most] if most <= MOST_IN_REGISTERS else []
        ring = replace(schedule, stage=stage, last=last)
        for stages, ahead in ((2, 0), (2, 1), (3, 0), (3, 1)):
            for place in places if rest else [*places, X_IN_SHARED]:
                for held in (0, 1) if place != X_IN_SHARED else (0,):
                    yield replace(ring, stages=stages, x_place=place, ahead=ahead, held=held)


def wide(problem: Problem, target: Target) -> Iterator[Medium | Wide]:
    x_rows = x_rows_of(problem.columns, target)
    for warps in (8, 16) if x_rows == MEDIUM_COLUMNS else ():
        stage = -(-problem.records // warps)
        for stages in (2, 4) if stage <= 6 else ():
            yield Medium(warps, stage, stages)
    for groups in {16: (3, 4, 5), 32: (3, 4, 5), 64: (2, 3), 128: (2,)}[x_rows]:
        for row_groups in (n for n in range(1, groups + 1) if groups % n == 0):
            for stage in (1, 2, 4):
                yield Wide(x_rows, groups, row_groups, stage)


def table(results: list[tuple[LinearCase, list[tuple[float, Schedule]]]], target: Target) -> str:
    """The text of tuned_skinny.py: for matrices that are alike, the best schedule on average."""
    groups: dict[tuple[str, int], dict[tuple[int, int], list[dict[Schedule, float]]]] = {}
    for case, timed in results:
        problem = problem_of(RECORD_FORMATS[case.format], case.shape, case.columns)
        rows = groups.setdefault((case.format, x_rows_of(case.columns, target)), {})
        alike = rows.setdefault((problem.records, tile_class(problem.tiles)), [])
        alike.append({schedule: us / timed[0][0] for us, schedule in timed})
    lines = [*Path(tuned_skinny.__file__).read_text().partition("] = {\n")[:2]]
    for key, rows in sorted(groups.items()):
        lines.append(f"    {key}: {{\n".replace("'", '"'))
        for shape, alike in sorted(rows.items()):
            common = set.intersection(*(set(each) for each in alike))
            best = min(common, key=lambda schedule: sum(each[schedule] for each in alike))
            values = [getattr(best, field.name) for field in fields(best)][1:]
            entry = values if values[-1] else values[:-1]  # held
            lines.append(f"        {shape}: {tuple(entry)},\n")
        lines.append("    },\n")
    return "".join([*lines, "}\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default=",".join(WEIGHT_FORMATS))
    parser.add_argument("--columns", default="1,4,8")
    parser.add_argument("--matrices", default=",".join(MODEL_SHAPES))
    parser.add_argument("--write", default="")
    options = parser.parse_args()
    device = CudaDevice()
    plan = {
        case: list(
            candidates(
                problem_of(RECORD_FORMATS[case.format], case.shape, case.columns), device.target
            )
        )
        for name in options.formats.split(",")
        for matrix in options.matrices.split(",")
        for columns in map(int, options.columns.split(","))
        for case in [LinearCase(name, matrix, MODEL_SHAPES[matrix], columns)]
    }
    begin = time.monotonic()
    device.prepare(
        {s.kernel(RECORD_FORMATS[case.format]) for case, every in plan.items() for s in every}
    )
    ceilings = measure_ceilings(device)
    print(f"compiled in {time.monotonic() - begin:.0f} s; reads {ceilings.read / 1e12:.2f} TB/s")
    bench, results = LinearBench(device), []
    for case, every in plan.items():
        weights = bench.weights(case)
        timed = sorted(
            (
                (bench.time_us(case, weights, schedule, replays=5), schedule)
                for schedule in every
                if not device.kernel(schedule.kernel(weights[0].record_format)).cubin.spill_bytes
            ),
            key=lambda item: item[0],
        )
        results.append((case, timed))
        report(bench, ceilings, case, weights, timed)
    if options.write:
        Path(options.write).write_text(table(results, device.target))


def report(
    bench: LinearBench,
    ceilings: Ceilings,
    case: LinearCase,
    weights: list[PackedWeight],
    timed: list[tuple[float, Schedule]],
) -> None:
    num_bytes = weights[0].num_bytes + 2 * case.columns * sum(case.shape)
    error = bench.error(case, weights[0], timed[0][1])
    verdict = "" if error <= LARGEST_ERROR else f" WRONG {error:.1e}"
    for us, schedule in timed[:3]:
        fraction = num_bytes / us * 1e6 / ceilings.read
        print(
            f"{case.format:<20} {case.name:<20} T{case.columns:<3} {us:8.2f} us"
            f" {fraction:6.1%}{verdict} {schedule}",
            flush=True,
        )


if __name__ == "__main__":
    main()
