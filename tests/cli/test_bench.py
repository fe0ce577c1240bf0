from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime import environment
from ninfer_runtime.bench import ceilings
from ninfer_runtime.cli import bench
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.device import cuda
from ninfer_runtime.errors import DeviceError
from ninfer_runtime.ops import kernels

PACK = Kernel("ops/linear/activations.cu", "ninfer::pack_activations_kernel<true, false>")


@pytest.fixture
def run(invoke, monkeypatch, tmp_path):
    """Call the command, which then knows of one kernel only."""
    monkeypatch.setattr(kernels, "ops_with_kernels", lambda: ["linear"])
    monkeypatch.setattr(kernels, "every_kernel", lambda op, target: {PACK})
    monkeypatch.setattr(ceilings, "KERNELS", frozenset())
    monkeypatch.setattr(environment, "kernel_cache_dir", lambda: tmp_path)

    def run(*arguments):
        return invoke(bench.command, bench.SCHEMA, *arguments)

    return run


def test_kernels_are_compiled_for_the_architectures_that_are_named(run, tmp_path):
    result = run("--compile-only", "--arch", "sm_80", "--arch", "sm_90a")
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith("sm_")]
    assert [line.split()[:2] for line in lines] == [["sm_80", "1"], ["sm_90a", "1"]]
    assert len(list(tmp_path.iterdir())) == 2


def test_kernels_that_cannot_be_kept_are_compiled_with_a_warning(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(environment, "kernel_cache_dir", lambda: tmp_path / "file" / "kernels")
    result = run("--compile-only", "--arch", "sm_80")
    assert result.code == 0
    assert f"warning: {tmp_path}/file/kernels: Not a directory: what is compiled" in result.err


def test_json_lists_the_resources_of_every_kernel(run):
    result = run("--compile-only", "--arch", "sm_90a", "--json", "--no-progress")
    (kernel,) = json.loads(result.out)["kernels"]
    assert (kernel["instance"], kernel["architecture"]) == (PACK.instance, "sm_90a")
    assert kernel["registers"] > 0
    assert kernel["spill_bytes"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "exactly one of --ops and --compile-only is needed"),
        (("--ops", "linear", "--compile-only"), "exactly one of --ops and --compile-only"),
        (("--ops", "linear", "--arch", "sm_80"), "--arch goes with --compile-only"),
        (("--compile-only", "--arch", "sm_75"), "--arch sm_75 is not one of sm_80"),
        (("--compile-only", "-r", "2"), "--repetitions goes with --ops"),
        (("--compile-only", "--device", "0"), "--device goes with --ops"),
        (("model.ninfer",), "unexpected extra argument (model.ninfer)"),
        (("-p", "512"), "no such option '-p'"),
    ],
)
def test_wrong_options_are_refused(run, arguments, message):
    result = run(*arguments)
    assert message in result.err
    assert result.code == ExitCode.USAGE


def test_ops_need_a_gpu(run, monkeypatch):
    def absent():
        raise DeviceError("the NVIDIA driver is not installed")

    monkeypatch.setattr(cuda, "driver", absent)
    result = run("--ops", "linear")
    assert "the NVIDIA driver is not installed" in result.err
    assert result.code == ExitCode.UNAVAILABLE


def compilers(pid):
    """Processes that the process `pid` has started to compile."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for file in threads for child in file.read_text().split()]
    return [
        child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_an_interrupt_of_all_processes_is_answered_by_the_command_alone(tmp_path):
    program = shutil.which("ninfer-bench", path=str(Path(sys.executable).parent))
    assert program is not None
    with subprocess.Popen(
        [program, "--compile-only", "--arch", "sm_80"],
        env=os.environ | {"NINFER_CACHE_DIR": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not compilers(process.pid):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.15)  # in the middle of their imports, where an interrupt shows
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED
    assert err.endswith("error: interrupted\n")
    assert "Traceback" not in err
