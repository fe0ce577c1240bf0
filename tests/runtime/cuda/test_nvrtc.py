from __future__ import annotations

import pickle

import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime.cuda import nvrtc
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.nvrtc import compile_kernel, nvrtc_version
from ninfer_runtime.errors import DeviceError, KernelCompileError


def test_a_kernel_becomes_machine_code_with_its_name_and_resources(scale_kernel):
    cubin = compile_kernel(scale_kernel, "sm_90a")
    assert cubin.data.startswith(b"\x7fELF")
    assert cubin.symbol.encode() in cubin.data
    assert "scale_kernel" in cubin.symbol
    assert 0 < cubin.registers < 32
    assert (cubin.stack_bytes, cubin.spill_bytes) == (0, 0)


def test_spills_and_stack_frames_are_reported(package):
    (package / "scale.cu").write_text("""
        extern "C" __global__ void f(int* x, int n) {
          int a[64] = {};
          for (int i = 0; i < n; i++) a[x[i] & 63] += i;
          x[0] = a[n & 63];
        }""")
    assert compile_kernel(Kernel("scale.cu", "f"), "sm_80").stack_bytes == 256


def test_a_log_without_resources_is_an_error(package, scale_kernel, monkeypatch):
    monkeypatch.setattr(nvrtc, "OPTIONS", nvrtc.OPTIONS[:-1])
    with pytest.raises(KernelCompileError, match="no resources are reported"):
        compile_kernel(scale_kernel, "sm_80")


def test_an_error_names_kernel_architecture_and_line(package, scale_kernel):
    (package / "scale.cu").write_text("namespace ninfer {\nvoid f() { nonsense; }\n}\n")
    with pytest.raises(KernelCompileError) as caught:
        compile_kernel(scale_kernel, "sm_86")
    message = str(caught.value)
    assert message.startswith("ninfer::scale_kernel<3> in scale.cu does not compile for sm_86:")
    assert '"nonsense" is undefined' in message
    assert "    2 | void f() { nonsense; }" in message
    assert caught.value.exit_code == ExitCode.INTERNAL


def test_an_instance_that_does_not_exist_is_an_error(package):
    with pytest.raises(KernelCompileError, match="absent_kernel"):
        compile_kernel(Kernel("scale.cu", "ninfer::absent_kernel"), "sm_86")


def test_a_compile_error_travels_between_processes():
    error = KernelCompileError("f<1> in f.cu", "sm_80", "the log")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.log) == (str(error), "the log")


def test_without_nvrtc_the_error_says_what_to_install(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(nvrtc, "import_module", absent)
    with pytest.raises(DeviceError, match=r"cannot be compiled: No module named 'cuda") as caught:
        nvrtc_version()
    assert caught.value.hint is not None
    assert "cuda13" in caught.value.hint
