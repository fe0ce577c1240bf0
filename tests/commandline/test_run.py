"""How commands end: exit codes, error lines and the failure document."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ninfer_format.commandline import Terminal, common_options, run
from ninfer_format.errors import ArtifactError, NInferError, UnsupportedConfigError, UsageError


def command_that_raises(error: BaseException) -> click.Command:
    @click.command()
    @click.option("--count", type=int)
    @common_options("demo/1")
    def demo(terminal: Terminal, count: int | None) -> None:
        raise error

    return demo


def outcome_of(command: click.Command, *arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        run(command, "demo/1", arguments)
    return ended.value.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NInferError("it failed"), 1),
        (UsageError("it failed"), 2),
        (ArtifactError("framing", "it failed"), 3),
        (UnsupportedConfigError("key", 1, expected="2"), 5),
        (OSError(28, "No space left on device", "file"), 1),
        (ZeroDivisionError("it failed"), 70),
        (MemoryError(), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(error, code, capsys):
    assert outcome_of(command_that_raises(error)) == code

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_error_line_names_file_and_hint(capsys):
    error = ArtifactError("framing", "container version 2", path="m.ninfer", hint="upgrade it")

    outcome_of(command_that_raises(error))

    assert capsys.readouterr().err == "error: m.ninfer: container version 2 (hint: upgrade it)\n"


def test_failure_with_json_prints_a_document_and_the_line(capsys):
    error = ArtifactError("framing", "wrong magic", path="m.ninfer", hint="look at it")

    outcome_of(command_that_raises(error), "--json")

    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "schema": "demo/1",
        "ok": False,
        "error": {
            "code": "artifact_framing",
            "message": "m.ninfer: wrong magic",
            "path": "m.ninfer",
            "hint": "look at it",
        },
    }
    assert captured.err.startswith("error: m.ninfer: wrong magic")


def test_debug_shows_the_traceback(capsys):
    outcome_of(command_that_raises(ZeroDivisionError("it failed")), "--debug")

    assert "Traceback" in capsys.readouterr().err


def test_unknown_option_is_a_usage_error_with_a_suggestion(capsys):
    assert outcome_of(command_that_raises(NInferError("never")), "--cout", "3") == 2

    error = capsys.readouterr().err
    assert error.startswith("error: no such option")
    assert "--count" in error
    assert "Usage:" not in error


def test_success_is_zero_and_json_puts_schema_first(capsys):
    @click.command()
    @common_options("demo/1")
    def demo(terminal: Terminal) -> None:
        terminal.note("for people")
        terminal.print_json({"answer": "né"})

    assert outcome_of(demo, "--json") == 0
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)) == ["schema", "ok", "answer"]
    assert "né" in captured.out
    assert captured.err == "for people\n"


def test_quiet_leaves_only_errors_on_stderr(capsys):
    @click.command()
    @common_options("demo/1")
    def demo(terminal: Terminal) -> None:
        terminal.note("for people")
        raise NInferError("it failed")

    outcome_of(demo, "--quiet")

    assert capsys.readouterr().err == "error: it failed\n"


def test_a_closed_pipe_ends_quietly():
    program = (
        "import click\n"
        "from ninfer_format.commandline import common_options, run\n"
        "@click.command()\n"
        "@common_options('demo/1')\n"
        "def demo(terminal):\n"
        "    for _ in range(100000):\n"
        "        click.echo('line')\n"
        "run(demo, 'demo/1', [])\n"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)

    process = subprocess.run(
        [sys.executable, "-c", program], stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)

    assert process.returncode == 1
    assert process.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_full_disk_is_an_error_even_if_the_product_waits_in_the_buffer(lines):
    program = (
        "import click\n"
        "from ninfer_format.commandline import common_options, run\n"
        "@click.command()\n"
        "@common_options('demo/1')\n"
        "def demo(terminal):\n"
        f"    print('line\\n' * {lines})\n"
        "run(demo, 'demo/1', [])\n"
    )
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert process.returncode == 1
    assert process.stderr == b"error: no space left on device\n"


WAITING = """
import sys, time, click
from pathlib import Path
from ninfer_format.commandline import common_options, new_output, run

@click.command()
@common_options('demo/1')
def demo(terminal):
    with new_output(Path(sys.argv[1])) as file:
        file.write(b'half')
        terminal.note('writing')
        time.sleep(60)

run(demo, 'demo/1', sys.argv[2:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_partial_file_and_one_error(number, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, str(tmp_path / "out"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "writing\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)

    assert process.returncode == 128 + number
    # click ends the line on which a terminal has echoed ^C.
    assert err.removeprefix("\n") == "error: interrupted\n"
    assert json.loads(out)["error"] == {"code": "interrupted", "message": "interrupted"}
    assert os.listdir(tmp_path) == []


def test_an_ignored_hangup_stays_ignored(tmp_path):
    program = WAITING.replace("time.sleep(60)", "time.sleep(1)")
    with subprocess.Popen(
        ["nohup", sys.executable, "-c", program, str(tmp_path / "out")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "writing" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=30) == 0

    assert os.listdir(tmp_path) == ["out"]


def test_names_in_messages_cannot_forge_lines_or_drive_the_terminal(capsys):
    error = ArtifactError("part", "bad part \x1b]0;title\x07\nerror: all is well")

    outcome_of(command_that_raises(error))

    captured = capsys.readouterr().err
    assert captured == "error: bad part \\x1b]0;title\\x07\\nerror: all is well\n"
