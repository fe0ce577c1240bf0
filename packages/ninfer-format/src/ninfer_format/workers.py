"""Running tasks on worker threads, with progress and a quick end when one fails.

Threads suffice: what takes time is NumPy, hashing and files, and all three release the interpreter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from threading import Event, Lock, Thread
from typing import TypeVar

Result = TypeVar("Result")


Advance = Callable[[int, str], None]
"""Counts bytes of work as done, for the item that is named; a task calls it often."""


_POLL_S = 0.01
"""How often the main thread looks whether the work has ended."""
_MOST_WORKERS = 32
"""More threads than this would wait for the interpreter, and each needs memory."""


class _StoppedError(Exception):
    pass


def worker_count() -> int:
    """Number of threads that keep all processors busy that this process may use."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)


def run_tasks(
    tasks: Sequence[Callable[[Advance], Result]], *, jobs: int, advance: Advance
) -> list[Result]:
    """Run tasks on `jobs` threads.

    Args:
        tasks: Each is called once with a function that counts its work. That function also ends
            the task when another one has failed or the command was interrupted.
        jobs: Number of threads.
        advance: Where the counts go; called by one thread at a time.

    Returns:
        The results in the order of the tasks.

    Raises:
        Exception: The first failure among the tasks, in their order.
        KeyboardInterrupt: No task runs any more when it is passed on.
    """
    stop, lock = Event(), Lock()

    def count(num_bytes: int, item: str) -> None:
        if stop.is_set():
            raise _StoppedError
        with lock:
            advance(num_bytes, item)

    outcome: list[list[Result] | BaseException] = []

    begun: list[bool] = []

    def coordinate() -> None:
        begun.append(True)
        if stop.is_set():  # Interrupted while this thread was started: nobody waits for it.
            return
        try:
            outcome.append(_run_all([partial(task, count) for task in tasks], jobs, stop))
        except BaseException as error:
            outcome.append(error)

    # On a thread of its own: an interrupt is raised in the main thread wherever that is, also
    # inside `wait` while it holds the locks of the futures, which the workers then need to end.
    try:
        Thread(target=coordinate, name="work").start()
        _sleep_until(outcome)
    except BaseException:
        stop.set()
        if begun:
            _sleep_until(outcome)
        raise
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _run_all(tasks: Sequence[Callable[[], Result]], jobs: int, stop: Event) -> list[Result]:
    with ThreadPoolExecutor(jobs, thread_name_prefix="work") as pool:
        futures = [pool.submit(task) for task in tasks]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = any(future.exception() is not None for future in done)
        if failed:
            stop.set()
            pool.shutdown(cancel_futures=True)
    for future in futures:
        if future in done:
            future.result()
    return [future.result() for future in futures]


def _sleep_until(outcome: Sequence[object]) -> None:
    """Wait without any lock, which an interrupt at the wrong moment would leave locked."""
    while not outcome:
        time.sleep(_POLL_S)
