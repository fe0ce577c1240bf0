from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from ninfer_format.errors import ExitCode
from ninfer_runtime.cuda import driver as driver_module
from ninfer_runtime.cuda import launch
from ninfer_runtime.cuda.driver import check
from ninfer_runtime.cuda.launch import (
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    POINTER,
    WORD,
    Geometry,
    LoadedKernel,
)
from ninfer_runtime.cuda.nvrtc import Cubin
from ninfer_runtime.errors import DeviceError, DeviceFailedError, DeviceMemoryError


@pytest.fixture
def run(monkeypatch):
    """Launches with the driver's own structures, but calls that only record."""

    def run(*geometries: Geometry, result=0):
        calls: list[tuple] = []

        def launch_kernel(config, function, arguments, extra):
            attributes = [(a.id.name, a.value) for a in config.attrs[: config.numAttrs]]
            calls.append(("launch", config.gridDimX, config.sharedMemBytes, attributes))
            return (bindings.CUresult(result),)

        def set_attribute(function, attribute, value):
            calls.append(("shared", value))
            return (bindings.CUresult(0),)

        names = {
            "cuLaunchKernelEx": launch_kernel,
            "cuFuncSetAttribute": set_attribute,
            **{name: getattr(bindings, name) for name in dir(bindings) if name.startswith("CU")},
        }
        monkeypatch.setattr(launch, "driver", lambda: SimpleNamespace(**names))
        kernel = LoadedKernel(Cubin(b"", "f_kernel", 1, 0, 0), 0, None)
        for geometry in geometries:
            kernel.launch(geometry, [], 0)
        return calls

    return run


def test_a_geometry_becomes_a_configuration(run):
    _, (_, blocks, shared, attributes) = run(Geometry(7, 32, 100))
    assert (blocks, shared, attributes) == (7, 100, [])


def test_the_driver_finds_each_argument_by_its_address(monkeypatch):
    arguments = [
        (5, INT),
        (2**40, LONG),
        (1 << 63, POINTER),
        (0.5, FLOAT),
        (-3, INT),
        (0.1, DOUBLE),
    ]
    arguments += [(2**64 - 1, WORD), (7, INT)]
    found = []

    def launch_kernel(config, function, address, extra):
        places = (ctypes.c_void_p * len(arguments)).from_address(address)
        kinds: list[Any] = [kind for _, kind in arguments]
        found.append([kind.from_address(at).value for at, kind in zip(places, kinds, strict=True)])
        return (bindings.CUresult(0),)

    monkeypatch.setattr(bindings, "cuLaunchKernelEx", launch_kernel)
    monkeypatch.setattr(launch, "driver", lambda: bindings)
    kernel = LoadedKernel(Cubin(b"", "f_kernel", 1, 0, 0), 0, None)
    for _ in range(2):
        kernel.launch(Geometry(1, 32), arguments, 0)
        arguments.reverse()
    kernel.launch(Geometry(1, 32), [(2**32 - 2, INT), *arguments[1:]], 0)
    assert found[0] == found[1][::-1] == [5, 2**40, 1 << 63, 0.5, -3, 0.1, 2**64 - 1, 7]
    # An unsigned number for a parameter that is told as signed keeps its bits.
    assert found[2] == [-2, *found[0][1:]]


def test_no_arguments_are_no_error(run):
    ((*_, attributes),) = run(Geometry(1, 32))
    assert attributes == []


def test_overlap_and_clusters_become_attributes(run):
    ((*_, attributes),) = run(Geometry(8, 32, cluster=2, overlap=True))
    (overlap, first), (cluster, second) = attributes
    assert overlap == "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"
    assert first.programmaticStreamSerializationAllowed == 1
    assert cluster == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"
    assert (second.clusterDim.x, second.clusterDim.y, second.clusterDim.z) == (2, 1, 1)


def test_much_shared_memory_is_allowed_once(run):
    sizes = (0, 48 << 10, 100 << 10, 90 << 10, 101 << 10)
    calls = run(*(Geometry(1, 32, size) for size in sizes))
    # Of 48 KiB too: the kernel may declare some itself, which count.
    assert [call[1] for call in calls if call[0] == "shared"] == [48 << 10, 100 << 10, 101 << 10]


def test_a_refused_launch_names_the_kernel(run):
    with pytest.raises(DeviceFailedError, match=r"launch of f_kernel failed: CUDA_ERROR_INVALID"):
        run(Geometry(1, 32), result=1)


def test_full_memory_and_other_failures_end_a_command_differently():
    codes = bindings.CUresult
    with pytest.raises(DeviceMemoryError) as full:
        check((codes.CUDA_ERROR_OUT_OF_MEMORY,), "work")
    with pytest.raises(DeviceFailedError, match="work failed: CUDA_ERROR_ILLEGAL_ADDRESS") as other:
        check((codes.CUDA_ERROR_ILLEGAL_ADDRESS,), "work")
    assert (full.value.exit_code, other.value.exit_code) == (ExitCode.CAPACITY, ExitCode.FAILED)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Thu Jan  1 00:00:00 UTC 2026",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)",
    ],
)
def test_the_release_of_the_driver_is_found(tmp_path, monkeypatch, line):
    file = tmp_path / "version"
    monkeypatch.setattr(driver_module, "_VERSION_FILE", file)
    assert driver_module.driver_release() is None
    file.write_text(f"{line}\nGCC version:  gcc version 13.3.0\n")
    assert driver_module.driver_release() == "580.159.04"


def test_without_cuda_bindings_the_error_says_what_to_install(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name="cuda")

    monkeypatch.setattr(driver_module, "import_module", absent)
    with pytest.raises(DeviceError, match="no module cuda") as caught:
        driver_module.driver.__wrapped__()
    assert "cuda13" in str(caught.value.hint)
