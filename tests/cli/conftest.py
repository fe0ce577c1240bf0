"""Runs commands inside the test process, as their console scripts do."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import click
import pytest

from ninfer_format.commandline import run


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


@pytest.fixture
def invoke(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Finished]:
    """Call a command with arguments and standard input; of our variables only one is set."""
    for name in os.environ:
        if name.startswith("NINFER_"):
            monkeypatch.delenv(name)
    # Without it, what is tested would depend on whether there is a GPU.
    monkeypatch.setenv("NINFER_BACKEND", "cpu")

    def call(command: click.Command, schema: str, *arguments: str, stdin: bytes = b"") -> Finished:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(command, schema, arguments)
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Finished(code, captured.out, captured.err)

    return call
