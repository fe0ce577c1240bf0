"""Many kernels at once. Processes, because NVRTC compiles one program at a time in each."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.module_cache import ModuleCache
from ninfer_runtime.cuda.nvrtc import Cubin

Target = tuple[Kernel, str]
"""A kernel and the architecture to compile it for."""


def compile_kernels(
    targets: Iterable[Target],
    cache: ModuleCache,
    *,
    jobs: int | None = None,
    advance: Callable[[int, str], None] = lambda amount, item: None,
) -> dict[Target, Cubin]:
    """Fill the cache with kernels and return their machine code.

    Args:
        targets: What to compile; repeated ones count once.
        cache: Where finished kernels are looked up and kept.
        jobs: Number of processes; by default one for each processor.
        advance: Called with 1 and a kernel's name for each that is finished.

    Raises:
        KernelCompileError: A source has an error.
        DeviceError: NVRTC or cuda-bindings is not installed.
    """
    finished: dict[Target, Cubin] = {}
    missing: list[Target] = []
    for target in sorted(set(targets)):
        cubin = cache.get(*target)
        if cubin is None:
            missing.append(target)
        else:
            finished[target] = cubin
            advance(1, target[0].instance)
    if missing:
        workers = min(len(missing), jobs or len(os.sched_getaffinity(0)))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            pending = {pool.submit(_compile, target, cache.directory): target for target in missing}
            try:
                for future in as_completed(pending):
                    target = pending[future]
                    finished[target] = future.result()
                    advance(1, target[0].instance)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return finished


def _compile(target: Target, directory: Path) -> Cubin:
    return ModuleCache(directory).load(*target)
