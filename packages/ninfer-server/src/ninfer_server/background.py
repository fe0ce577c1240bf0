"""Work that the event loop waits for without doing it, and need not wait for to the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def on_daemon_thread(function: Callable[[], T], name: str) -> Future[T]:
    """Call `function` on a thread that does not keep the process alive.

    Args:
        function: What to do. It cannot be cancelled: the future ends when it has returned.
        name: Of the thread.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()
    threading.Thread(target=_run, args=(outcome, function), name=name, daemon=True).start()
    return outcome


def _run(outcome: Future[T], function: Callable[[], T]) -> None:
    try:
        result = function()
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
    finally:
        # The error knows this frame: only the collector would free what it refers to.
        del outcome, function


async def unless(stop: asyncio.Event, work: asyncio.Future[T]) -> T | None:
    """Return what `work` gives, or None, with `work` cancelled, if `stop` is set first."""
    stopping = asyncio.ensure_future(stop.wait())
    either: set[asyncio.Future[Any]] = {work, stopping}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        stopping.cancel()
        work.cancel()
        del work, either  # As above.
