from __future__ import annotations

import subprocess
import sys

import pytest

from ninfer_runtime.cuda import compilation
from ninfer_runtime.cuda.compilation import compile_kernels
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.module_cache import ModuleCache
from ninfer_runtime.errors import DeviceFailedError, KernelCompileError

# Kernels of the package itself: other processes do not see what a test has changed.
KERNELS = [
    Kernel("ops/linear/activations.cu", f"ninfer::pack_activations_kernel<{bf16}>")
    for bf16 in ("false", "true")
]


def test_processes_fill_the_cache_and_report_progress(tmp_path):
    cache = ModuleCache(tmp_path)
    seen: list[str] = []
    targets = [(kernel, "sm_80") for kernel in [*KERNELS, *KERNELS]]
    cubins = compile_kernels(targets, cache, jobs=2, advance=lambda amount, item: seen.append(item))
    assert set(cubins) == set(targets)
    assert sorted(seen) == [kernel.instance for kernel in KERNELS]
    for kernel, architecture in targets:
        assert cache.get(kernel, architecture) == cubins[kernel, architecture]


def test_what_is_in_the_cache_starts_no_process(tmp_path, monkeypatch):
    cache = ModuleCache(tmp_path)
    cubin = cache.load(KERNELS[0], "sm_80")
    monkeypatch.delattr(compilation, "CompileWorker")
    seen: list[str] = []
    found = compile_kernels(
        [(KERNELS[0], "sm_80")], cache, advance=lambda amount, item: seen.append(item)
    )
    assert found == {(KERNELS[0], "sm_80"): cubin}
    assert seen == [KERNELS[0].instance]


def test_the_first_error_ends_the_compilation(tmp_path):
    absent = Kernel(KERNELS[0].source, "ninfer::absent_kernel")
    with pytest.raises(KernelCompileError, match=r"absent_kernel in .* does not compile"):
        compile_kernels([(absent, "sm_80")], ModuleCache(tmp_path), jobs=1)


def test_a_process_that_is_ended_from_outside_is_no_bug(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/true")
    with pytest.raises(DeviceFailedError, match="was ended, perhaps at ninfer::pack_activations"):
        compile_kernels([(KERNELS[0], "sm_80")], ModuleCache(tmp_path), jobs=1)


def test_a_script_without_a_guard_is_run_once(tmp_path):
    lines = (
        "from pathlib import Path",
        "from ninfer_runtime.cuda.compilation import compile_kernels",
        "from ninfer_runtime.cuda.kernel import Kernel",
        "from ninfer_runtime.cuda.module_cache import ModuleCache",
        "print('top')",
        f"kernels = {[(kernel.source, kernel.instance) for kernel in KERNELS]!r}",
        f"cache = ModuleCache(Path({str(tmp_path)!r}))",
        "print(len(compile_kernels([(Kernel(*k), 'sm_80') for k in kernels], cache, jobs=2)))",
    )
    script = "\n".join(lines)
    given_on_stdin = subprocess.run(
        [sys.executable, "-"], input=script, capture_output=True, text=True, check=True
    )
    assert given_on_stdin.stdout == "top\n2\n"
    assert given_on_stdin.stderr == ""
