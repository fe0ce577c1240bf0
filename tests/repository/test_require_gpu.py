"""`just test-gpu` on a machine where nothing can run is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tests/runtime/ops/test_rotary_table.py",), "skipped"),
        (("tests/runtime/ops/test_registry.py",), "deselected"),
    ],
    ids=["skipped", "none"],
)
def test_a_gpu_run_that_leaves_something_out_fails(arguments, said):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--require-gpu", *arguments],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in result.stdout
    assert result.returncode == 1
