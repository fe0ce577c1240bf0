"""The fuzzer on the reader, for a minute; ``just fuzz SECONDS`` runs it for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 60


@pytest.fixture(autouse=True)
def _atheris() -> None:
    """Skip these tests, and no run that leaves them out, where it cannot be installed."""
    pytest.importorskip("atheris", reason="atheris has no wheel for this Python")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


@pytest.mark.slow
def test_no_file_breaks_the_reader() -> None:
    result = run("-m", "tests.fuzz.reader", f"{SECONDS}")
    assert result.returncode == 0, result.stdout[-5000:]
    assert "Done " in result.stdout


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param("{}['x']", "KeyError", id="another exception"),
        pytest.param("bytearray(70_000_000)", "MemoryError: 70", id="too much memory"),
    ],
)
def test_the_fuzzer_notices_a_fault(fault: str, error: str, tmp_path: Path) -> None:
    """A reader with a fault is found out by the first input."""
    script = (
        "from pathlib import Path\n"
        "import tests.fuzz.reader as reader\n"
        f"reader.exercise = lambda entry: {fault}\n"
        f"reader.FOUND = Path({str(tmp_path)!r})\n"
        "reader.main(['5'])\n"
    )
    result = run("-c", script)
    assert result.returncode != 0
    assert error in result.stdout
    (found,) = tmp_path.iterdir()
    again = run("-c", script.replace("'5'", repr(str(found))))
    assert again.returncode != 0
    assert error in again.stdout
