"""What `just test-gpu` and `just sanitize-gpu` select, and when they fail."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--require-gpu", *arguments],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tests/runtime/ops/test_rotary_table.py",), "skipped"),
        (("tests/runtime/ops/test_registry.py",), "deselected"),
    ],
    ids=["skipped", "none"],
)
def test_a_gpu_run_that_leaves_something_out_fails(arguments, said):
    result = run(*arguments)
    assert said in result.stdout
    assert result.returncode == 1


def test_what_other_tests_need_may_be_missing(tmp_path):
    """Python versions exist for which the fuzzer cannot be installed."""
    (tmp_path / "atheris.py").write_text("raise ModuleNotFoundError(name='atheris')")
    result = run("tests/fuzz", PYTHONPATH=str(tmp_path))
    assert "3 deselected" in result.stdout
    assert "skipped" not in result.stdout


def test_few_cases_are_chosen_of_every_test():
    folder = "tests/runtime/ops/linear"
    all_of_them, few = (
        run(folder, "--collect-only", *more).stdout.splitlines() for more in ((), ("--cases", "2"))
    )
    names, chosen = (
        Counter(line.partition("[")[0] for line in lines if line.startswith(folder))
        for lines in (all_of_them, few)
    )
    assert max(names.values()) > 2
    assert chosen == {name: min(2, count) for name, count in names.items()}
