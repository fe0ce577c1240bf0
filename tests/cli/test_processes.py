"""The commands as processes of their own: signals, pipes, speed and what the terminal sees."""

import fcntl
import json
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from ninfer_runtime.cli import bench, generate, perplexity

COMMANDS = {"ninfer": generate, "ninfer-perplexity": perplexity, "ninfer-bench": bench}
PROMPT = ("--prompt", "What is the capital of France?", "--no-thinking", "--greedy")
# Greedy continuation of program text never ends by itself.
ENDLESS = ("--prompt", "class BZ2File(_compression.BaseStream):", "--greedy", "--max-new", "1900")


def program(name):
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    assert path is not None
    return path


def run(name, *arguments, **options):
    return subprocess.run(
        [program(name), *arguments], capture_output=True, check=False, timeout=120, **options
    )


@pytest.fixture
def raw_template(tmp_path):
    template = tmp_path / "raw.jinja"
    template.write_text("{{ messages[0].content }}")
    return str(template)


@pytest.fixture
def endless(raw_template):
    """`ninfer` in the middle of an answer that does not end."""
    with subprocess.Popen(
        [program("ninfer"), *ENDLESS, "--chat-template", raw_template],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert len(process.stdout.read(20)) == 20
        yield process
        process.kill()


def test_an_interrupt_stops_flushes_and_reports(endless):
    endless.send_signal(signal.SIGINT)
    out, err = endless.communicate(timeout=60)
    assert endless.returncode == 130
    assert out.endswith(b"\n")
    assert not out.endswith(b"\n\n")
    assert b"finish   cancelled" in err
    assert b"Traceback" not in err


def read_until(stream, text):
    for line in stream:
        if text in line:
            return
    pytest.fail(f"{text} did not come")


def test_a_second_interrupt_ends_at_once(tmp_path):
    # One chunk that takes long, so that the first interrupt alone would not end it soon.
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "word " * 24_000}]))
    arguments = ("--max-context", "32768", "--prefill-chunk", "32768", "-v")
    with subprocess.Popen(
        [program("ninfer"), "--messages", str(chat), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        read_until(process.stderr, b"<|im_start|>assistant")  # the end of the prompt
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        read_until(process.stderr, b"stopping")
        process.send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - interrupted < 5
    assert process.returncode == 130
    assert out == b""
    assert err == b"interrupted\n"


def wait_until_blocked(pipe):
    """Wait until a small pipe that nobody reads takes nothing more."""
    deadline = time.monotonic() + 60
    before = -1
    while time.monotonic() < deadline:
        held = int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
        if held == before and held > 1000:
            return
        before = held
        time.sleep(1)
    pytest.fail("the pipe did not fill")


@pytest.mark.parametrize("stderr", [subprocess.PIPE, subprocess.STDOUT], ids=["alone", "both"])
def test_interrupts_end_a_command_whose_reader_pauses(raw_template, stderr):
    with subprocess.Popen(
        [program("ninfer"), *ENDLESS, "--chat-template", raw_template, "-v"],
        stdout=subprocess.PIPE,
        stderr=stderr,
    ) as process:
        assert process.stdout is not None
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        read_until(process.stderr or process.stdout, b"class BZ2File")
        wait_until_blocked(process.stdout)
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=10) == 130
        finally:
            process.kill()


def test_a_closed_stdin_is_named():
    command = shlex.join([program("ninfer"), "--prompt", "-"])
    done = subprocess.run(["/bin/sh", "-c", f"{command} <&-"], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"stdin is closed" in done.stderr


def test_a_closed_pipe_ends_quietly(endless):
    endless.stdout.close()
    assert endless.wait(timeout=60) == 1
    assert b"Traceback" not in endless.stderr.read()


def test_a_closed_stdout_ends_quietly():
    command = shlex.join([program("ninfer"), *PROMPT])
    done = subprocess.run(["/bin/sh", "-c", f"{command} >&-"], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [PROMPT, (*PROMPT, "--json")])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(arguments):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [program("ninfer"), *arguments], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert b"error: no space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_output_is_utf8_in_any_locale(raw_template):
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    arguments = ("--prompt", "-", "--chat-template", raw_template, "--dry-run", "-v")
    done = run("ninfer", *arguments, env=environment, input="naïve 日本".encode())
    assert done.returncode == 0
    assert "naïve 日本" in done.stderr.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(name):
    done = run(name, "--help", env={"COLUMNS": "200"})
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.decode().splitlines()) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_under_a_heading(name):
    text = run(name, "-h").stdout.decode()
    for parameter in COMMANDS[name].command.params:
        if parameter.param_type_name == "option":
            assert parameter.opts[0] in text
    for heading in COMMANDS[name].HEADINGS:
        assert f"\n{heading}:\n" in text
    assert "\n  Examples:\n" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_needs_no_heavy_module(name):
    module = COMMANDS[name].__name__
    code = (
        f"import sys, {module}; "
        "print(*sorted({'numpy', 'tokenizers', 'jinja2', 'ml_dtypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_quick(name):
    def seconds():
        started = time.monotonic()
        run(name, "--help")
        return time.monotonic() - started

    # The best of several: other work on the machine can only add to it.
    assert min(seconds() for _ in range(7)) < 0.3


@pytest.mark.parametrize("name", COMMANDS)
def test_the_version_is_that_of_the_package(name):
    from importlib.metadata import version

    done = run(name, "--version")
    assert done.returncode == 0
    assert version("ninfer-runtime") in done.stdout.decode()
