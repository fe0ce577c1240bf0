"""Every kernel compiles for every architecture, without a GPU, and keeps its values in registers."""

from __future__ import annotations

import pytest

from ninfer_runtime.bench.kernels import OTHER_KERNELS
from ninfer_runtime.cuda.compilation import compile_kernels
from ninfer_runtime.cuda.module_cache import ModuleCache
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.ops.kernels import every_kernel, ops_with_kernels


@pytest.fixture(scope="session")
def cubins(request: pytest.FixtureRequest):
    """The machine code of everything, compiled together; kept from one run to the next."""
    assert request.config.cache is not None
    cache = ModuleCache(request.config.cache.mkdir("kernels"))
    targets = [
        (kernel, architecture)
        for architecture, target in TYPICAL_TARGETS.items()
        for kernel in OTHER_KERNELS.union(*(every_kernel(op, target) for op in ops_with_kernels()))
    ]
    return compile_kernels(targets, cache)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
@pytest.mark.parametrize("op", ops_with_kernels())
def test_every_kernel_compiles_without_spilling(cubins, op, architecture):
    kernels = every_kernel(op, TYPICAL_TARGETS[architecture])
    assert kernels
    assert not spilling(cubins, kernels, architecture)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("architecture", TYPICAL_TARGETS)
def test_kernels_of_no_op_compile_without_spilling(cubins, architecture):
    assert not spilling(cubins, OTHER_KERNELS, architecture)


def spilling(cubins, kernels, architecture):
    """Registers, stack and spilled bytes of kernels that do not keep their values in registers."""
    return {
        kernel.instance: (cubin.registers, cubin.stack_bytes, cubin.spill_bytes)
        for kernel in kernels
        if (cubin := cubins[kernel, architecture]).stack_bytes or cubin.spill_bytes
    }
