from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from ninfer_format.workers import Advance, run_tasks


def ignore(num_bytes: int, item: str) -> None:
    pass


@pytest.mark.parametrize("jobs", [1, 3])
def test_results_come_in_the_order_of_the_tasks(jobs: int):
    def task(index: int):
        def run(advance: Advance) -> int:
            time.sleep(0.01 * (index % 3))
            return index

        return run

    tasks = [task(index) for index in range(12)]
    assert run_tasks(tasks, jobs=jobs, advance=ignore) == list(range(12))


def test_counts_of_all_threads_add_up():
    counted: list[tuple[int, str]] = []

    def run(advance: Advance) -> None:
        for _ in range(50):
            advance(2, "x")

    run_tasks([run] * 8, jobs=4, advance=lambda amount, item: counted.append((amount, item)))
    assert sum(amount for amount, _ in counted) == 8 * 50 * 2


def test_a_failure_ends_the_other_tasks():
    ended = threading.Event()
    started = threading.Event()
    later: list[int] = []

    def endless(advance: Advance) -> None:
        started.set()
        try:
            while True:
                advance(1, "endless")
                time.sleep(0.001)
        finally:
            ended.set()

    def failing(advance: Advance) -> None:
        assert started.wait(10)
        raise ValueError("this one")

    def last(advance: Advance) -> None:
        advance(1, "last")
        later.append(1)

    tasks = [endless, failing, *[last] * 20]
    with pytest.raises(ValueError, match="this one"):
        run_tasks(tasks, jobs=2, advance=ignore)
    assert ended.is_set()


def test_an_interruption_waits_for_the_tasks_to_end():
    ended = threading.Event()

    def interrupted(advance: Advance) -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            while True:
                advance(1, "x")
                time.sleep(0.001)
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_tasks([interrupted], jobs=1, advance=ignore)
    assert ended.is_set()


@pytest.mark.timeout(60)
def test_an_interrupt_at_any_moment_ends_the_work():
    """Also while the main thread prepares to wait for hundreds of tasks."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def task(advance: Advance) -> None:
        for _ in range(1000):
            time.sleep(0.001)
            advance(1, "")

    def interrupted_run(delay_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        run_tasks([task] * 300, jobs=2, advance=ignore)

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for moment in range(100):
            with pytest.raises(KeyboardInterrupt):
                interrupted_run(0.0002 + 0.0001 * moment)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("work") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
