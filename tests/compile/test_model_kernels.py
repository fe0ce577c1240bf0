"""Real models find a kernel for everything they do, and all of these are compiled ahead of use."""

from __future__ import annotations

from functools import cache

import pytest
from tests.compile.dry_gpu import DryGpu

from ninfer_runtime.bench.synthetic import known_geometries, read_geometry, synthetic_model
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.engine.executor import Executor
from ninfer_runtime.engine.executor_options import MAX_LANES, ExecutorOptions
from ninfer_runtime.kv.formats import KV_FORMATS
from ninfer_runtime.ops.kernels import every_kernel, ops_with_kernels

RECIPES = {
    "qwen3.6-27b": ("qwen3_6_27b", "qwen3_8_27b", "qwen3_8_27b_nvfp4", "qwen3_8_27b_bf16"),
    "qwen3.6-35b-a3b": ("qwen3_6_35b_a3b",),
}
CONTEXT = 8192


@cache
def listed(architecture: str) -> set[Kernel]:
    target = TYPICAL_TARGETS[architecture]
    return set().union(*(every_kernel(op, target) for op in ops_with_kernels()))


def test_every_geometry_has_recipes():
    assert known_geometries() == sorted(RECIPES)


@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
@pytest.mark.parametrize(
    ("geometry", "recipe"), [(name, recipe) for name in RECIPES for recipe in RECIPES[name]]
)
@pytest.mark.parametrize("kv_dtype", KV_FORMATS)
def test_what_a_model_launches_is_listed(geometry, recipe, architecture, kv_dtype):
    device = DryGpu(TYPICAL_TARGETS[architecture])
    config = read_geometry(geometry)
    # Four layers are one of each kind at least.
    config["text_config"] |= {"num_hidden_layers": 4}
    model = synthetic_model(config, recipe, device)
    executor = Executor(
        model,
        ExecutorOptions(KV_FORMATS[kv_dtype], CONTEXT, model.vocab_size, lanes=MAX_LANES),
    )
    assert {
        str(kernel) for kernel in device.needs(executor.works()) - listed(architecture)
    } == set()
