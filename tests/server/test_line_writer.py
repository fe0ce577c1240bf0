"""Log lines on their way to a stream that may not take them."""

import io
import threading

from ninfer_server.line_writer import MAX_WAITING_LINES, LineWriter


class StuckStream:
    """Takes nothing until it is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.written = []

    def write(self, data):
        self.reached.set()
        self.opened.wait(10)
        self.written.append(data.decode())
        return len(data)


class BrokenStream:
    def __init__(self):
        self.attempts = 0

    def write(self, data):
        self.attempts += 1
        raise BrokenPipeError


def test_lines_keep_their_order_and_are_whole_when_the_writer_closes():
    stream = io.BytesIO()
    with LineWriter(stream.write) as writer:
        for index in range(100):
            writer.write(f"line {index} é")
    assert stream.getvalue().decode().splitlines() == [f"line {index} é" for index in range(100)]


def test_stream_that_refuses_costs_its_lines_only():
    stream = BrokenStream()
    with LineWriter(stream.write) as writer:
        writer.write("a")
        writer.write("b")
    assert stream.attempts == 2


def test_stream_that_takes_nothing_holds_nobody_up_and_lost_lines_are_counted():
    stream = StuckStream()
    writer = LineWriter(stream.write)
    writer.write("first")
    assert stream.reached.wait(10)
    for _ in range(MAX_WAITING_LINES + 7):
        writer.write("more")
    writer.close()
    assert stream.written == []
    stream.opened.set()
    writer.close()
    assert stream.written[1] == "7 log lines were dropped: they came faster than they were read\n"
    assert len(stream.written) == 1 + MAX_WAITING_LINES + 1
