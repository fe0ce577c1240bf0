"""Which schedule multiplies: the measured one where there is one, else one that a rule makes."""

from __future__ import annotations

from ninfer_runtime.cuda.target import Target
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.schedule import (
    MEDIUM_COLUMNS,
    SKINNY_COLUMNS,
    WIDE_COLUMNS,
    X_IN_GLOBAL,
    X_IN_SHARED,
    Medium,
    Problem,
    Schedule,
    Skinny,
    Wide,
    x_rows_of,
)
from ninfer_runtime.ops.linear.tuned_skinny import TUNED_SKINNY, tile_class
from ninfer_runtime.ops.linear.weight_records import RecordFormat

_REGULAR_STAGES = (5, 4)
"""Records of a stage of schedules that a rule makes: few, so that few kernels are needed."""

_UNEVEN_STAGE_BYTES = 4096

_DECODING_COLUMNS = 192
"""From so many columns on Hopper decodes a weight once: measured, two turns of up to 128 columns are as
fast for the largest matrix and slower for the others."""

_MEDIUM_FORMATS = ("q4_g64_fp16", "q5_g64_fp16", "nvfp4")
"""Those that the wide kernel reads slowest."""

_MEDIUM_STAGE = 5
"""Records of a warp whose x its registers hold."""

_MEDIUM_TILES = 4
"""For up to so many row tiles of a block, but more than one, it does not pay to load x into registers."""

_RECORD_WEIGHTS = 1024
_DECODED_BYTES = 4
"""A decoded weight is written and read again, in bf16."""


def choose(problem: Problem, target: Target) -> Schedule:
    """The schedule for a product.

    Raises:
        UnsupportedOpError: No kernel multiplies so many columns on such a device.
    """
    if problem.columns <= SKINNY_COLUMNS:
        return _skinny(problem, target)
    if target.has_wgmma and problem.columns <= WIDE_COLUMNS[-1]:
        return _medium(problem, target) or _wide(problem, target)
    raise UnsupportedOpError(
        "linear",
        "cuda",
        detail=f"{problem.columns} columns and compute capability"
        f" {target.capability[0]}.{target.capability[1]}",
    )


def decodes_first(record_format: RecordFormat, columns: int, target: Target) -> bool:
    """Whether a weight is decoded to memory before so many columns are multiplied with it.

    Without the wide kernel each turn of 8 columns reads the weight: decoding reads it once, and
    moves every value twice more.
    """
    if target.has_wgmma:
        return columns >= _DECODING_COLUMNS
    stored = record_format.record_bytes / _RECORD_WEIGHTS
    return -(-columns // SKINNY_COLUMNS) * stored > stored + _DECODED_BYTES


def _skinny(problem: Problem, target: Target) -> Skinny:
    x_rows = x_rows_of(problem.columns, target)
    if target.has_wgmma:
        entries = TUNED_SKINNY[problem.record_format.name, x_rows]
        entry = entries.get((problem.records, tile_class(problem.tiles)))
        if entry is not None:
            schedule = Skinny(x_rows, *entry)
            if schedule.fits(problem, target):
                return schedule
    count, rest = divmod(problem.records, 8)
    stage = next((n for n in _REGULAR_STAGES if count and count % n == 0), 0)
    if not rest and stage:
        for blocks in (2, 1):
            schedule = Skinny(x_rows, 8, stage, stage, 2, blocks=blocks, resident=1)
            if schedule.fits(problem, target):
                return schedule
    stage = max(1, _UNEVEN_STAGE_BYTES // problem.record_format.record_bytes)
    shared = Skinny(x_rows, 8, stage, 0, 2, x_place=X_IN_SHARED)
    if shared.fits(problem, target):
        return shared
    return Skinny(x_rows, 8, stage, 0, 2, x_place=X_IN_GLOBAL)


def _medium(problem: Problem, target: Target) -> Medium | None:
    """None where the wide kernel is as fast, or registers do not hold x."""
    if problem.columns > MEDIUM_COLUMNS or problem.record_format.name not in _MEDIUM_FORMATS:
        return None
    if 1 < -(-problem.tiles // target.multiprocessors) <= _MEDIUM_TILES:
        return None
    warps = 8 if problem.records <= 8 else 16
    stage = -(-problem.records // warps)
    if stage > _MEDIUM_STAGE:
        return None
    schedule = Medium(warps, stage, 4 if stage <= 3 else 2)
    return schedule if schedule.fits(problem, target) else None


def _wide(problem: Problem, target: Target) -> Wide:
    x_rows = x_rows_of(problem.columns, target)
    tiles = -(-problem.tiles // target.multiprocessors)
    if x_rows == 128:
        groups, row_groups = 2, 2 if tiles > 4 else 1
    elif x_rows == 64:
        groups, row_groups = 3, 3 if tiles > 4 else 1
    elif tiles > 8:
        groups, row_groups = 5, 5
    else:
        groups, row_groups = 4, 2 if tiles > 4 else 1
    deep = [Wide(x_rows, groups, row_groups, stage) for stage in (8, 4, 2, 1)]
    fitting = [schedule for schedule in deep if schedule.fits(problem, target)]
    if groups == 5 and fitting[0].stage == 8:
        return fitting[0]
    # Three stages hide the loads better than large stages do, but for stages as large as that.
    fitting = [schedule for schedule in fitting if schedule.stage < 8]
    return next((s for s in fitting if s.stages(problem, target) >= 3), fitting[0])
