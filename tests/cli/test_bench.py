from __future__ import annotations

import json

import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime import environment
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

    def run(*arguments):
        monkeypatch.setattr(environment, "kernel_cache_dir", lambda: tmp_path)
        return invoke(bench.command, bench.SCHEMA, *arguments)

    return run


def test_kernels_are_compiled_for_the_architectures_that_are_named(run, tmp_path):
    result = run("--compile-only", "--arch", "sm_80", "--arch", "sm_90a")
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith("sm_")]
    assert [line.split()[:2] for line in lines] == [["sm_80", "1"], ["sm_90a", "1"]]
    assert len(list(tmp_path.iterdir())) == 2


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
