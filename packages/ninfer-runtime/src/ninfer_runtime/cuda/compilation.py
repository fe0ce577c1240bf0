"""Many kernels at once. Processes, because NVRTC compiles one program at a time in each."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from ninfer_format.workers import Advance, run_tasks, worker_count
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.module_cache import ModuleCache
from ninfer_runtime.cuda.nvrtc import Cubin
from ninfer_runtime.errors import DeviceFailedError

Target = tuple[Kernel, str]
"""A kernel and the architecture to compile it for."""


def compile_kernels(
    targets: Iterable[Target],
    cache: ModuleCache,
    *,
    jobs: int | None = None,
    advance: Advance = lambda amount, item: None,
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
        DeviceFailedError: A process that compiles was ended from outside.
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
        workers = min(len(missing), jobs or worker_count())
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            tasks = [partial(_compile_in, pool, target, cache.directory) for target in missing]
            cubins = run_tasks(tasks, jobs=workers, advance=advance)
        finished.update(zip(missing, cubins, strict=True))
    return finished


def _compile_in(
    pool: ProcessPoolExecutor, target: Target, directory: Path, advance: Advance
) -> Cubin:
    # A process inherits the mask of the thread that starts it: Ctrl-C, which goes to all of them, is
    # then for the command alone to answer.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        cubin = pool.submit(_compile, target, directory).result()
    except BrokenProcessPool as error:
        raise DeviceFailedError(
            f"a process that compiles kernels was ended, perhaps at {target[0]}",
            hint="it may have run out of memory: free some, or allow fewer processors",
        ) from error
    advance(1, target[0].instance)
    return cubin


def _compile(target: Target, directory: Path) -> Cubin:
    return ModuleCache(directory).load(*target)
