"""Running tasks on worker threads, with progress and a quick end when one fails.

Threads suffice: what takes time is NumPy, hashing and files, and all three release the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import TypeVar

Result = TypeVar("Result")


Advance = Callable[[int, str], None]
"""Counts bytes of work as done, for the item that is named; a task calls it often."""


class _StoppedError(Exception):
    pass


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

    with ThreadPoolExecutor(jobs, thread_name_prefix="convert") as pool:
        try:
            futures = [pool.submit(task, count) for task in tasks]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future in done:
                    future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]
