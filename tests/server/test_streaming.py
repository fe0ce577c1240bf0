"""When a silent stream gets a comment, by a clock that the test moves."""

import asyncio
from collections.abc import AsyncGenerator

from ninfer_server import streaming
from ninfer_server.streaming import KEEP_ALIVE, NOTHING, KeepAlive


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


async def two_events() -> AsyncGenerator[bytes, None]:
    yield b"one"
    yield b"two"


def test_comments_stay_away_while_events_flow(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(streaming, "time", clock)

    async def scenario() -> None:
        keep_alive = KeepAlive(5.0)
        events = keep_alive.watch(two_events())
        await anext(events)
        clock.now += 4
        await anext(events)  # the first event has been sent by now
        clock.now += 4
        assert keep_alive.due() is NOTHING
        clock.now += 1
        assert keep_alive.due() is KEEP_ALIVE
        clock.now += 4
        assert keep_alive.due() is NOTHING
        await events.aclose()

    asyncio.run(scenario())
