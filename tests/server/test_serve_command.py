"""The command line of ninfer-serve."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from ninfer_format.commandline import Terminal
from ninfer_runtime import builtin_model
from ninfer_server.cli import command
from ninfer_server.cli_settings import check_options, engine_options, log_level, server_settings
from ninfer_server.settings import digest_api_keys

BUILT_IN = str(builtin_model.path())
RUN = [sys.executable, "-c", "from ninfer_server.cli import main; main()"]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("MODEL", "API_KEY", "LOG_LEVEL", "BACKEND"):
        monkeypatch.delenv(f"NINFER_{name}", raising=False)


def run(*arguments, **environment):
    return subprocess.run(
        [*RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
    )


def parsed(*arguments):
    options = command.make_context("ninfer-serve", list(arguments)).params
    check_options(options, [])
    return options


def settings(*arguments):
    return server_settings(parsed(*arguments))


def test_help_is_quick_and_narrow_and_imports_nothing_heavy():
    script = (
        "import sys; from ninfer_server.cli import command\n"
        "try: command.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'fastapi', 'pydantic', 'uvicorn', 'numpy', 'tokenizers', 'jinja2', 'structlog'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "set()"
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert min(_seconds_of_help() for _ in range(3)) < 0.3


def _seconds_of_help():
    """Processor time: unlike the clock it does not depend on what else the machine does."""
    before = os.times()
    subprocess.run([*RUN, "--help"], capture_output=True, check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def test_every_option_is_explained():
    for option in command.params[1:]:
        assert option.help, option.name


def test_defaults():
    server = settings()
    assert server.model_id is None
    assert server.api_key_digests == ()
    assert server.compatibility == "lenient"
    assert server.max_pending_requests == 16
    assert server.pending_timeout_s == 30
    assert server.default_max_tokens == 8192
    assert server.max_request_bytes == 384 * 2**20
    assert server.shutdown_grace_s == 10
    assert server.enable_thinking is None
    assert server.preserve_thinking is None
    assert server.seed is None
    options = parsed()
    assert (options["host"], options["port"]) == ("127.0.0.1", 8080)
    engine = engine_options(options, Path("m.ninfer"))
    assert engine.max_context is None
    assert engine.default_max_context == 8192
    assert engine.prefill_chunk == 1024


def test_options_reach_the_settings(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("x")
    arguments = (
        *("--model-id", "m", "--accept-any-model", "--compat", "strict", "--cors"),
        *("--max-pending-requests", "3", "--pending-timeout-ms", "1500"),
        *("--default-max-tokens", "7", "--max-request-mib", "2", "--shutdown-grace-s", "0.5"),
        *("--no-thinking", "--preserve-thinking", "--temperature", "0.5", "--top-k", "3"),
        *("--min-p", "0.1", "--presence-penalty", "-1", "--seed", "5"),
        *("--max-context", "999", "--prefill-chunk", "256", "--device", "1"),
        *("--chat-template", str(template), "--backend", "cpu"),
    )
    server = settings(*arguments)
    assert server.model_id == "m"
    assert server.accept_any_model
    assert server.compatibility == "strict"
    assert server.cors
    assert server.max_pending_requests == 3
    assert server.pending_timeout_s == 1.5
    assert server.default_max_tokens == 7
    assert server.max_request_bytes == 2 * 2**20
    assert server.shutdown_grace_s == 0.5
    assert server.enable_thinking is False
    assert server.preserve_thinking is True
    assert server.sampling.temperature == 0.5
    assert server.sampling.top_k == 3
    assert server.sampling.min_p == 0.1
    assert server.sampling.presence_penalty == -1
    assert server.seed == 5
    engine = engine_options(parsed(*arguments), Path("m.ninfer"))
    assert engine.max_context == 999
    assert engine.prefill_chunk == 256
    assert engine.device == 1
    assert engine.backend == "cpu"
    assert engine.chat_template == template
    assert engine.max_pending_requests == 3


def test_keys_come_from_options_and_file_else_from_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("one\n\n  two  \n")
    monkeypatch.setenv("NINFER_API_KEY", "other")
    assert settings("--api-key", "a", "--api-key", "b", "--api-key-file", str(file)) == settings(
        "--api-key", "a", "--api-key", "b", "--api-key", "one", "--api-key", "two"
    )
    assert settings().api_key_digests == digest_api_keys(["other"])
    assert settings("--api-key", "a").api_key_digests == digest_api_keys(["a"])


def test_key_is_in_no_representation():
    assert "sesame" not in repr(settings("--api-key", "sesame"))


def test_level_of_the_log(monkeypatch):
    loud, quiet, plain = (
        Terminal("x", verbose=1),
        Terminal("x", quiet=True),
        Terminal("x"),
    )
    assert log_level(plain, None) == "info"
    assert log_level(loud, None) == "debug"
    assert log_level(quiet, None) == "error"
    assert log_level(loud, "warning") == "warning"
    monkeypatch.setenv("NINFER_LOG_LEVEL", "off")
    assert log_level(plain, None) == "off"
    assert log_level(plain, "info") == "info"


def test_everything_that_is_wrong_is_reported_together(tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    done = run(
        *("--port", "70000", "--max-pending-requests", "0", "--prefill-chunk", "100"),
        *("--backend", "tpu", "--greedy", "--temperature", "1", "--model-id", " "),
        *("--max-context", "x", "--api-key-file", str(empty)),
        NINFER_LOG_LEVEL="loud",
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for part in (
        "'--port': 70000 is not in the range 0<=x<=65535",
        "'--max-pending-requests': 0",
        "'--prefill-chunk': 100 is not a multiple of 128",
        "'--backend': 'tpu'",
        "--greedy and --temperature",
        "'--model-id'",
        "'--max-context': 'x'",
        "--api-key-file holds no key",
        "NINFER_LOG_LEVEL",
    ):
        assert part in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("--api-key", ""),
        ("--api-key-file", "/nonexistent/file"),
        ("--chat-template", "/nonexistent/file"),
        ("--temperature", "nan"),
        ("--temperature", "2.5"),
        ("--top-k", "21"),
        ("--seed", "-1"),
        ("--shutdown-grace-s", "-1"),
        ("--shutdown-grace-s", "nan"),
        ("--shutdown-grace-s", "inf"),
        ("--model-id", b"\xff"),
        ("--default-max-tokens", "0"),
        ("--max-request-mib", "0"),
        ("--pending-timeout-ms", "0"),
        ("--device", "-1"),
        ("--log-level", "loud"),
        ("--compat", "none"),
        ("--unknown",),
        ("a.ninfer", "b.ninfer"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .+\n", done.stderr)
    assert done.stdout == ""


def test_failure_is_a_document_too_with_json():
    done = run("--json", "--port", "70000")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["schema"] == "ninfer-serve/1"
    assert document["ok"] is False
    assert document["error"]["code"] == "usage"
    assert "70000" in done.stderr


def test_taken_port_ends_with_1_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(str(tmp_path / "absent.ninfer"), "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == f"error: cannot listen on 127.0.0.1:{port}: address in use\n"


def test_unknown_host_ends_with_1():
    done = run("--host", "256.256.256.256", "--port", "0")
    assert done.returncode == 1
    assert "cannot listen on 256.256.256.256:0" in done.stderr


def test_model_that_cannot_be_loaded_ends_the_process(tmp_path):
    broken = tmp_path / "broken.ninfer"
    broken.write_bytes(b"not an artifact at all")
    done = run(str(broken), "--port", "0", "--json")
    assert done.returncode == 3
    assert "broken.ninfer" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["ok"] is False


def test_context_beyond_the_model_is_refused():
    done = run("--max-context", "1000000", "--port", "0")
    assert done.returncode == 2
    assert "32768" in done.stderr


def test_signal_while_the_model_loads_ends_the_process_with_0(tmp_path):
    # A pipe without a writer: opening it never returns.
    pipe = tmp_path / "never.jinja"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [*RUN, BUILT_IN, "--chat-template", str(pipe), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stderr is not None
            assert "loading the model" in child.stderr.readline()
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=10)
            assert child.returncode == 0
        finally:
            child.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_before_anything_is_loaded_ends_the_process_with_0(number):
    script = (
        "import os, time\n"
        "from ninfer_server import cli\n"
        f"cli.choose_model = lambda *_: (os.kill(os.getpid(), {int(number)}), time.sleep(20))\n"
        "cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=15
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def unread_pipe():
    """Return both ends of a pipe that is full."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write_end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x")
    os.set_blocking(write_end, True)
    return read_end, write_end


@pytest.mark.parametrize("is_read_end_open", [True, False], ids=["unread", "broken"])
def test_stderr_that_takes_nothing_changes_no_answer(is_read_end_open):
    read_end, write_end = unread_pipe()
    if not is_read_end_open:
        os.close(read_end)
    with subprocess.Popen(
        [*RUN, BUILT_IN, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=write_end,
        text=True,
    ) as child:
        try:
            os.close(write_end)
            assert child.stdout is not None
            url = json.loads(child.stdout.readline())["url"]
            answer = httpx2.post(f"{url}/v1/chat/completions", content=b"{", timeout=10)
            assert answer.status_code == 400
            assert answer.json()["error"]["message"] == "body is not valid JSON"
            assert answer.headers["x-request-id"]
            child.send_signal(signal.SIGTERM)
            assert child.wait(timeout=15) == 0
        finally:
            child.kill()
            if is_read_end_open:
                os.close(read_end)


def test_version_names_the_package():
    result = CliRunner().invoke(command, ["--version"])
    assert result.exit_code == 0
    assert re.search(r"\d+\.\d+\.\d+", result.output)
