"""Many kernels at once. Processes, because NVRTC compiles one program at a time in each."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from queue import LifoQueue

from ninfer_format.workers import Advance, run_tasks, worker_count
from ninfer_runtime.cuda.compile_worker import CompileWorker
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
        pool = _WorkerPool(workers, cache.directory)
        try:
            cubins = run_tasks(
                [partial(pool.compile, target) for target in missing], jobs=workers, advance=advance
            )
        finally:
            pool.close()
        finished.update(zip(missing, cubins, strict=True))
    return finished


class _WorkerPool:
    """Processes that are started when they are first needed."""

    def __init__(self, size: int, directory: Path) -> None:
        self._directory = directory
        self._started: list[CompileWorker] = []
        self._idle: LifoQueue[CompileWorker | None] = LifoQueue()
        for _ in range(size):
            self._idle.put(None)

    def compile(self, target: Target, advance: Advance) -> Cubin:
        """Have a kernel compiled by a process that is free."""
        worker = self._idle.get()
        try:
            if worker is None:
                worker = self._start()
            cubin = worker.compile(*target)
        finally:
            self._idle.put(worker)
        advance(1, target[0].instance)
        return cubin

    def close(self) -> None:
        """End the processes; none of them is compiling."""
        for worker in self._started:
            worker.close()

    def _start(self) -> CompileWorker:
        # A process inherits the mask of the thread that starts it: Ctrl-C, which goes to all of them,
        # is then for the command alone to answer.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        worker = CompileWorker(self._directory)
        self._started.append(worker)
        return worker
