from __future__ import annotations

import pickle

import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime.cuda import nvrtc
from ninfer_runtime.cuda.kernel import Kernel, headers_of
from ninfer_runtime.cuda.nvrtc import Cubin, compile_source, nvrtc_version
from ninfer_runtime.errors import DeviceError, KernelCompileError


def compile_kernel(kernel: Kernel, architecture: str) -> Cubin:
    source = kernel.read()
    return compile_source(kernel, source, headers_of(source), architecture)


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


@pytest.mark.parametrize(("name", "stack_bytes"), [("f", 256), ("g", 0)])
def test_a_kernel_is_told_from_another_one_in_its_source(package, name, stack_bytes):
    (package / "scale.cu").write_text("""
        extern "C" __global__ void f(int* x, int n) {
          int a[64] = {};
          for (int i = 0; i < n; i++) a[x[i] & 63] += i;
          x[0] = a[n & 63];
        }
        extern "C" __global__ void g(int* x, int n) { x[0] = n; }""")
    assert compile_kernel(Kernel("scale.cu", name), "sm_80").stack_bytes == stack_bytes


TWO_KERNELS = """
    extern "C" __global__ void f(int* x) { x[0] = 1; }
    extern "C" __global__ void g(int* x) { x[1] = 2; }"""


@pytest.mark.gpu
def test_what_the_driver_has_in_its_cache_has_resources(gpu, package):
    """NVRTC uses the driver's cache, which holds this source after the first kernel."""
    (package / "scale.cu").write_text(TWO_KERNELS)
    for name in ("f", "g"):
        assert compile_kernel(Kernel("scale.cu", name), gpu.architecture).registers > 0


def test_a_log_without_a_report_is_asked_for_again(scale_kernel, monkeypatch):
    whole, found = nvrtc._log, []

    def log(*arguments):
        found.append(whole(*arguments))
        return found[-1] if len(found) > 1 else ""

    monkeypatch.setattr(nvrtc, "_log", log)
    assert compile_kernel(scale_kernel, "sm_90a").registers > 0
    assert len(found) == 2


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
