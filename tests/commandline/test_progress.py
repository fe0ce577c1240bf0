"""Progress away from a terminal: few plain lines, no control characters."""

import pytest

from ninfer_format.commandline import Progress, Terminal


def test_plain_progress_prints_first_and_last_line_only_for_quick_work(capsys):
    with Progress(Terminal("demo/1"), "converting", total=1000, unit="bytes") as progress:
        for _ in range(100):
            progress.advance(10, "some parameter")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "converting: 0 % (0 bytes of 1000 bytes)",
        "converting: 100 % (1000 bytes of 1000 bytes)",
    ]
    assert "\r" not in captured.err
    assert "\x1b" not in captured.err


@pytest.mark.parametrize(
    "terminal", [Terminal("demo/1", progress="off"), Terminal("d/1", quiet=True)]
)
def test_progress_can_be_silenced(terminal, capsys):
    with Progress(terminal, "converting", total=2) as progress:
        progress.advance(2)

    assert capsys.readouterr().err == ""


def test_work_that_stops_early_says_how_far_it_came(capsys):
    def stop_early() -> None:
        with Progress(Terminal("demo/1"), "scoring", total=4) as progress:
            progress.advance(1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_early()

    assert capsys.readouterr().err.splitlines()[-1] == "scoring: 25 % (1 of 4)"


@pytest.mark.parametrize("color", ["auto", "always"])
def test_forced_colours_do_not_make_a_pipe_a_terminal(color, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")

    with Progress(Terminal("demo/1", color=color), "converting", total=2) as progress:
        progress.advance(2)

    captured = capsys.readouterr().err
    assert "converting: 100 % (2 of 2)" in captured
    assert "\r" not in captured
    assert "\x1b[?25l" not in captured
