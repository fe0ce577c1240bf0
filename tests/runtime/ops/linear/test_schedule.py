"""Which kernel is chosen, for every architecture, without a device."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.cases import MODEL_SHAPES
from ninfer_runtime.ops.linear.cuda import MOST_SUMS
from ninfer_runtime.ops.linear.epilogue import DEFERRED_NORM_SCALE
from ninfer_runtime.ops.linear.schedule import (
    MEDIUM_COLUMNS,
    Medium,
    Skinny,
    Wide,
    problem_of,
    x_rows_of,
)
from ninfer_runtime.ops.linear.tuned_skinny import TUNED_SKINNY, tile_class
from ninfer_runtime.ops.linear.tuning import choose
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS

HOPPER = TYPICAL_TARGETS["sm_90a"]


@given(
    architecture=st.sampled_from(list(TYPICAL_TARGETS)),
    name=st.sampled_from(list(RECORD_FORMATS)),
    shape=st.sampled_from(list(MODEL_SHAPES.values()))
    | st.tuples(st.integers(1, 40_000), st.integers(1, 20_000)),
    columns=st.integers(1, 8),
)
def test_up_to_eight_columns_run_everywhere(architecture, name, shape, columns):
    target = TYPICAL_TARGETS[architecture]
    problem = problem_of(RECORD_FORMATS[name], shape, columns)
    schedule = choose(problem, target)
    assert isinstance(schedule, Skinny)
    assert schedule.fits(problem, target)
    geometry = schedule.geometry(problem, target)
    assert geometry.shared_bytes <= target.shared_bytes
    assert geometry.blocks % schedule.splits == 0
    assert 0 < geometry.blocks <= problem.tiles * schedule.splits
    assert geometry.threads <= 1024
    if schedule.last:  # what the kernel takes for granted
        parts = schedule.warps * schedule.splits
        count = problem.records // parts
        assert count * parts == problem.records
        chunks = -(-count // schedule.stage)
        assert count == (chunks - 1) * schedule.stage + schedule.last
    assert columns <= schedule.x_rows


@given(
    name=st.sampled_from(list(RECORD_FORMATS)),
    shape=st.sampled_from(list(MODEL_SHAPES.values()))
    | st.tuples(st.integers(1, 40_000), st.integers(1, 20_000)),
    columns=st.integers(9, 128),
)
def test_more_columns_run_on_hopper(name, shape, columns):
    problem = problem_of(RECORD_FORMATS[name], shape, columns)
    schedule = choose(problem, HOPPER)
    assert schedule.fits(problem, HOPPER)
    geometry = schedule.geometry(problem, HOPPER)
    assert geometry.shared_bytes <= HOPPER.shared_bytes
    assert 0 < geometry.blocks <= min(problem.tiles, HOPPER.multiprocessors)
    if isinstance(schedule, Medium):  # what the kernel takes for granted
        assert columns <= MEDIUM_COLUMNS
        assert schedule.stage <= problem.records <= schedule.warps * schedule.stage
        assert geometry.threads == schedule.warps * 32
        return
    assert isinstance(schedule, Wide)
    assert columns <= schedule.x_rows
    assert schedule.groups % schedule.row_groups == 0
    assert schedule.stages(problem, HOPPER) >= 2
    assert geometry.threads == (schedule.groups + 1) * 128


def test_up_to_sixteen_columns_go_to_registers_if_k_is_not_too_large():
    chosen = {
        (name, columns, K): type(
            choose(problem_of(RECORD_FORMATS[name], (34816, K), columns), HOPPER)
        )
        for name in ("nvfp4", "bf16")
        for columns in (16, 17)
        for K in (5120, 5184)
    }
    assert [key for key, kind in chosen.items() if kind is Medium] == [("nvfp4", 16, 5120)]


@pytest.mark.parametrize("architecture", [name for name in TYPICAL_TARGETS if name != "sm_90a"])
def test_more_columns_are_refused_elsewhere(architecture):
    problem = problem_of(RECORD_FORMATS["bf16"], (64, 64), 9)
    with pytest.raises(UnsupportedOpError, match="9 columns and compute capability"):
        choose(problem, TYPICAL_TARGETS[architecture])


def test_the_number_of_columns_is_rounded_up_to_what_kernels_exist_for():
    counts = (1, 2, 4, 5, 8, 9, 16, 17, 33, 65, 128)
    rows = [x_rows_of(count, HOPPER) for count in counts]
    assert rows == [1, 4, 4, 8, 8, 16, 16, 32, 64, 128, 128]
    ampere = TYPICAL_TARGETS["sm_80"]
    assert [x_rows_of(count, ampere) for count in (1, 2, 8)] == [1, 8, 8]


@pytest.mark.parametrize(("name", "x_rows"), TUNED_SKINNY)
def test_measured_schedules_run_the_shapes_that_they_were_measured_with(name, x_rows):
    record_format = RECORD_FORMATS[name]
    entries = TUNED_SKINNY[name, x_rows]
    for shape in MODEL_SHAPES.values():
        problem = problem_of(record_format, shape, x_rows)
        entry = entries[problem.records, tile_class(problem.tiles)]
        assert choose(problem, HOPPER) == Skinny(x_rows, *entry)


def test_blocks_that_share_a_multiprocessor_fit_together():
    problem = problem_of(RECORD_FORMATS["nvfp4"], (12288, 5120), 1)
    schedule = choose(problem, HOPPER)
    assert isinstance(schedule, Skinny)
    assert schedule.blocks > 1
    assert schedule.shared_bytes(problem, HOPPER) <= HOPPER.shared_for(schedule.blocks)
    assert schedule.geometry(problem, HOPPER).blocks == 132 * schedule.blocks


def test_what_blocks_exchange_fits_into_its_memory():
    schedule = Skinny(8, 8, 5, 5, 2, splits=2, x_place=5)
    record_format = RECORD_FORMATS["q5_g64_fp16"]
    few, many = (problem_of(record_format, (16 * tiles, 64 * 80), 8) for tiles in (320, 321))
    assert schedule.fits(few, HOPPER)
    assert not schedule.fits(many, HOPPER)


def test_warps_with_different_numbers_of_records_keep_x_in_registers():
    problem = problem_of(RECORD_FORMATS["q5_g64_fp16"], (5120, 17408), 8)
    schedule = Skinny(8, 16, 5, 0, 3, splits=2, x_place=9)
    assert schedule.fits(problem, HOPPER)
    for other in ({"x_place": 8}, {"x_place": 10}, {"x_place": 0}):
        assert not replace(schedule, **other).fits(problem, HOPPER)


def test_words_are_held_of_constant_numbers_of_records():
    problem = problem_of(RECORD_FORMATS["q5_g64_fp16"], (5120, 6144), 1)
    for schedule in (Skinny(1, 16, 3, 3, 2), Skinny(1, 9, 4, 0, 2, x_place=11)):
        assert schedule.fits(problem, HOPPER)
        assert replace(schedule, held=1).fits(problem, HOPPER)
    uneven = Skinny(1, 9, 3, 0, 2)
    assert uneven.fits(problem, HOPPER)
    assert not replace(uneven, held=1).fits(problem, HOPPER)


def test_what_adds_to_a_residual_has_registers_to_spare():
    schedule = Skinny(1, 8, 4, 4, 2, blocks=3, resident=3)
    assert schedule.for_sums() == replace(schedule, blocks=2, resident=2)
    alone = Skinny(1, 16, 9, 8, 2)
    assert alone.for_sums() == alone


def test_the_kernel_has_the_numbers_of_the_launches():
    header = files("ninfer_runtime") / "cuda/include/ninfer/skinny_product.cuh"
    source = header.read_text(encoding="utf-8")
    assert f"constexpr int MOST_SQUARES = {MOST_SUMS};" in source
    assert f"constexpr float DEFERRED_NORM_SCALE = {DEFERRED_NORM_SCALE:g}.f;" in source
