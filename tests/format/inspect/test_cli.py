"""``ninfer-inspect`` as a command: help, streams, exit codes, odd files, signals."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from ninfer_format import TensorSpec
from ninfer_format.cli import command
from ninfer_format.inspect.decode_command import decode

SCRIPT = Path(sys.executable).with_name("ninfer-inspect")
GOLDEN = Path(__file__).with_name("help")


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False, **options
    )


# --- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "golden"), [([], "ninfer-inspect.txt"), (["decode"], "decode.txt")]
)
def test_help_is_what_it_was(arguments: list[str], golden: str) -> None:
    """After a wanted change, write the new text into the file."""
    environment = {**os.environ, "COLUMNS": "80"}
    result = run(*arguments, "--help", env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == run(*arguments, "-h", env=environment).stdout
    assert result.stdout == (GOLDEN / golden).read_text("utf-8")
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@pytest.mark.parametrize("subject", [command, decode], ids=["inspect", "decode"])
def test_every_option_has_a_help(subject: click.Command) -> None:
    assert all(option.help for option in subject.params if isinstance(option, click.Option))


def test_version() -> None:
    result = run("--version")
    assert result.stdout.startswith("ninfer-inspect ")
    assert result.stdout.endswith("container version 3\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_completion(shell: str) -> None:
    environment = {**os.environ, "_NINFER_INSPECT_COMPLETE": f"{shell}_source"}
    assert "ninfer-inspect" in run(env=environment).stdout


@pytest.mark.parametrize(
    ("line", "completed"), [("--verif", "--verify"), ("decode --word", "--words")]
)
def test_options_of_both_commands_are_completed(line: str, completed: str) -> None:
    words = f"ninfer-inspect {line}"
    environment = {
        **os.environ,
        "_NINFER_INSPECT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    assert run(env=environment).stdout == f"plain,{completed}\n"


def test_help_is_fast() -> None:
    """300 ms on a quiet machine; processor time, because tests share theirs."""

    def children_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    for arguments in ((), ("decode",)):
        times = []
        for _ in range(3):
            begin = children_s()
            run(*arguments, "--help")
            times.append(children_s() - begin)
        assert min(times) < 0.5


def test_help_does_not_wait_for_numpy() -> None:
    code = (
        "import sys, ninfer_format.cli; "
        "print([m for m in ('numpy', 'gguf', 'ml_dtypes', 'importlib.metadata') "
        "if m in sys.modules and m != 'importlib.metadata'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["malformed/v2_magic.ninfer"], 3, "container version 2, this release reads 3 (hint: "),
        (["malformed/part_wrong_id.p1"], 3, "continuation file 1 of an artifact"),
        (["malformed/malformed.json"], 3, "5b 0a 20 7b 0a 20 20 22"),
        (["malformed/truncated_payload.ninfer"], 3, "(expected 5124 bytes, found 5123)"),
        (["malformed/truncated_payload.ninfer", "--verify"], 3, "wrong file length"),
        (["malformed/none.ninfer"], 1, "none.ninfer: no such file or directory"),
        (["malformed"], 3, "no tensors in .safetensors files"),
        ([], 2, "missing argument 'FILE'"),
        (["malformed/valid_base.ninfer", "--bindngs"], 2, "did you mean '--bindings'?"),
        (["malformed/valid_base.ninfer", "--config", "--objects"], 2, "cannot be combined"),
        (["malformed/valid_base.ninfer", "--config", "--resource", "x"], 2, "cannot be combined"),
        (["malformed/valid_base.ninfer", "--verify", "--memory"], 2, "--verify, --memory"),
        (["malformed/valid_base.ninfer", "--rows", "0:1"], 2, "--rows needs --tensor"),
        (["malformed/valid_base.ninfer", "--slots", "2"], 2, "--slots needs --memory"),
        (["malformed/valid_base.ninfer", "--select", "x"], 2, "--select needs a list"),
        (["malformed/valid_base.ninfer", "--tensor", "w.a", "--rows", "1"], 2, "is not A:B"),
        (["malformed/valid_base.ninfer", "--tensor", "w.a", "--rows", "-1:2"], 2, "is not A:B"),
        (["malformed/valid_base.ninfer", "--memory", "--slots", "0"], 2, "range x>=1"),
        (["malformed/valid_base.ninfer", "--diff", "malformed/none.ninfer"], 1, "no such file"),
    ],
)
def test_failures_are_one_line_and_an_exit_code(
    arguments: list[str], exit_code: int, message: str, inspect: Any, conformance: Path
) -> None:
    arguments = [str(conformance / a) if a.startswith("malformed") else a for a in arguments]
    code, out, err = inspect(*arguments)
    assert (code, out) == (exit_code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message.lower() in err.lower()
    assert "ArtifactError" not in err
    code, out, same = inspect(*arguments, "--json")
    assert (code, same) == (exit_code, err)
    failure = json.loads(out)
    assert failure["ok"] is False
    assert failure["error"]["message"] in err


@pytest.mark.timeout(60)
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.ninfer"
    os.mkfifo(pipe)
    result = run(pipe)
    assert result.returncode == 3
    assert "not a regular file" in result.stderr


def test_names_from_the_file_cannot_draw_on_the_terminal(inspect: Any, write_artifact: Any) -> None:
    from ninfer_format import Component, ResourceSpec

    path = write_artifact(
        [ResourceSpec("a\x1b[31m\nb", b"x")],
        components={"text": Component({"architectures": ["[bold]\x07"]})},
        metadata={"name": "n\r\x1b]0;title\x07"},
    )
    for view in ("--objects", "--verify"):
        code, out, _ = inspect(path, view)
        assert code == 0
        assert not set(out) & set("\x1b\x07\r")
        assert r"a\x1b[31m\nb" in out
    assert r"[bold]\x07" in inspect(path)[1]


# --- the installed script ----------------------------------------------------------------------


def test_odd_file_names(all_formats: Path, tmp_path: Path) -> None:
    """Spaces, other letters, a leading dash, and the name of the subcommand."""
    for name, word in [("-ä model.ninfer", "-ä model.ninfer"), ("decode", "./decode")]:
        copy = tmp_path / name
        copy.write_bytes(all_formats.read_bytes())
        result = run("--json", "--", word, cwd=tmp_path)
        assert result.stderr == ""
        assert json.loads(result.stdout)["path"] == str(Path(word))


def test_progress_without_a_terminal_is_plain_lines_on_stderr(all_formats: Path) -> None:
    result = run(all_formats, "--verify", "--json")
    json.loads(result.stdout)
    lines = result.stderr.splitlines()
    assert lines[0].startswith("verifying: 0 %")
    assert lines[-1].startswith("verifying: 100 %")
    assert not set(result.stderr) & set("\x1b\r")
    assert run(all_formats, "--verify", "--quiet").stderr == ""


@pytest.mark.parametrize("view", [[], ["--objects"], ["--verify"], ["--json"]])
def test_a_closed_stdout_is_a_quiet_failure(view: list[str], all_formats: Path) -> None:
    result = subprocess.run(
        ["bash", "-c", 'exec "$@" >&-', "bash", SCRIPT, all_formats, *view, "--no-progress"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (1, "", "")


def test_a_full_disk_is_a_failure(all_formats: Path) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [SCRIPT, all_formats], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert "no space left" in result.stderr


def test_color_is_only_for_those_who_want_it(all_formats: Path) -> None:
    assert "\x1b[" not in run(all_formats).stdout
    assert "\x1b[" in run(all_formats, "--color", "always").stdout
    assert "\x1b[" not in run(all_formats, "--color", "never").stdout


def interrupted(arguments: list[object], cwd: Path) -> tuple[int, str]:
    """Send SIGINT when the command has said that it works."""
    process = subprocess.Popen(
        [SCRIPT, *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == ""
    return process.returncode, err


@pytest.fixture
def large(write_sparse: Any) -> Path:
    """Several seconds of work."""
    path: Path = write_sparse(
        [TensorSpec("w", (1_000_000, 4096), "q4_g64_fp16", "row_split_k128_v1")]
    )
    return path


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "arguments",
    [["--verify"], ["--tensor", "w"], ["--diff", "sparse.ninfer"]],
    ids=["verify", "tensor", "diff"],
)
def test_an_interrupt_ends_long_work(arguments: list[object], large: Path) -> None:
    before = sorted(large.parent.iterdir())
    code, err = interrupted([large, *arguments], large.parent)
    assert code == 130
    assert err.splitlines()[-1] == "error: interrupted"
    assert sorted(large.parent.iterdir()) == before


@pytest.mark.timeout(120)
def test_an_interrupt_leaves_nothing_of_a_decoded_tensor(large: Path) -> None:
    before = sorted(large.parent.iterdir())
    code, _ = interrupted(["decode", large, "w", "--out", "w.npy"], large.parent)
    assert code == 130
    assert sorted(large.parent.iterdir()) == before


# --- size --------------------------------------------------------------------------------------

PEAK = """
import sys
from ninfer_format.cli import main
sys.argv = ["ninfer-inspect", *sys.argv[1:]]
try:
    main()
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak.split()[1], file=sys.stderr)
"""


def test_forty_gigabytes_are_described_without_being_read(write_sparse: Any) -> None:
    specs = [
        TensorSpec("a", (9_000_000, 4096), "q8_g32_fp16", "row_split_k128_v1"),
        TensorSpec("b", (5,), "int32", "contiguous_le_v1"),
    ]
    path = write_sparse(specs)
    assert path.with_name("sparse.ninfer.part-0001").exists()
    result = subprocess.run(
        [sys.executable, "-c", PEAK, path, "--json", "--objects", "--bindings"],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(result.stdout)
    assert document["file_bytes"] > 39_000_000_000
    assert document["files"] == 2
    assert document["bits_per_weight"] == 8.5
    assert int(result.stderr.split()[-1]) * 1024 < 100_000_000
    result = subprocess.run(
        [sys.executable, "-c", PEAK, path, "--tensor", "a", "--rows", "8999999:", "--cols", "0:3"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "8999999: 0 0 0"
