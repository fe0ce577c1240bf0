"""The help of the commands that make a new artifact out of a finished one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Convert = Callable[..., tuple[int, str, str]]
Edits = dict[str, list[object]]

TOKENIZER = b'{"tokens": []}'
EDITS = ["policy", "template", "resource", "rename", "split", "attach"]


def present(folder: Path) -> dict[str, bytes]:
    """All files of a folder with their contents."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", [*EDITS, "upgrade"])
def test_help_fits_80_columns_and_shows_examples(
    convert_command: Convert, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("COLUMNS", "80")
    code, stdout, stderr = convert_command(name, "--help")
    assert (code, stderr) == (0, "")
    lines = stdout.splitlines()
    assert max(map(len, lines)) <= 80
    arguments = "IN.ninfer DONOR.ninfer OUT.ninfer" if name == "attach" else "IN.ninfer OUT.ninfer"
    assert lines[0] == f"Usage: ninfer-convert {name} [OPTIONS] {arguments}"
    examples = lines[lines.index("  Examples:") + 1 :]
    assert 2 <= sum(line.startswith("    ninfer-convert ") for line in examples) <= 4
    for option in ("--max-file-bytes", "--force", "--json", "--progress"):
        assert option in stdout


OPTIONS = {
    "upgrade": ["--chat-template FILE", "--table FILE", "[default: 32000000000]"],
    "policy": ["--parameter GLOB", "--policy [A16Only|AllowA8|AllowA4]", "[required]"],
    "template": ["--file T.jinja", "[required]"],
    "resource": ["--role ROLE", "--file FILE", "[required]"],
    "rename": ["--name TEXT", "[required]"],
    "split": ["--max-file-bytes SIZE", "[required]"],
    "attach": ["--component ID", "[required]"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_help_names_every_option(convert_command: Convert, name: str):
    _, stdout, _ = convert_command(name, "--help")
    text = " ".join(stdout.split())
    for option in OPTIONS[name]:
        assert option in text, option


@pytest.mark.parametrize("name", [*EDITS, "upgrade"])
def test_help_needs_nothing_heavy(name: str):
    probe = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from ninfer_quant.cli.convert import command\n"
        f"assert CliRunner().invoke(command, ['{name}', '--help']).exit_code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'ninfer_runtime.models', 'pydantic'}\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
