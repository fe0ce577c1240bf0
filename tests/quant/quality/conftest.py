from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer_format.commandline import run
from ninfer_quant.cli.quant import command
from ninfer_quant.cli.schema import QUANT_SCHEMA


@pytest.fixture
def quant(
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """Call ``ninfer-quant`` inside the test process; returns exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(command, QUANT_SCHEMA, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def tiny_text() -> Path:
    """The held-out text of the tiny model."""
    return Path(__file__).parents[2] / "data" / "tiny-model" / "heldout.txt"
