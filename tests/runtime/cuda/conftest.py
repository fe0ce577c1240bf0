from __future__ import annotations

from pathlib import Path

import pytest

from ninfer_runtime.cuda import kernel
from ninfer_runtime.cuda.kernel import Kernel

SOURCE = """#include "ninfer/prelude.cuh"
namespace ninfer {
template <int FACTOR>
__global__ void scale_kernel(float* x) { x[threadIdx.x] *= FACTOR; }
}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one kernel source and a copy of one header, that tests may change."""
    package = tmp_path / "package"
    include = package / "cuda" / "include" / "ninfer"
    include.mkdir(parents=True)
    header = kernel.INCLUDE.joinpath("ninfer", "prelude.cuh").read_text(encoding="utf-8")
    (include / "prelude.cuh").write_text(header)
    (package / "scale.cu").write_text(SOURCE)
    monkeypatch.setattr(kernel, "PACKAGE", package)
    monkeypatch.setattr(kernel, "INCLUDE", package / "cuda" / "include")
    return package


@pytest.fixture
def scale_kernel(package: Path) -> Kernel:
    return Kernel("scale.cu", "ninfer::scale_kernel<3>")
