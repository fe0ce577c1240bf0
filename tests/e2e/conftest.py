"""A server of the built-in model for the examples of the documentation."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Address of `ninfer-serve` with the built-in model, started for this test run."""
    program = shutil.which("ninfer-serve", path=str(Path(sys.executable).parent))
    assert program is not None
    process = subprocess.Popen(
        [program, "--port", "0", "--api-key", "secret", "--json", "--no-thinking"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = ""
        while not ready.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "the server ended before it was ready"
            ready += line
        yield json.loads(ready)["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        process.stdout.close()
