"""Which modules load on a machine that has no GPU library, and how fast `--help` answers."""

import pkgutil
import subprocess
import sys

import pytest

PACKAGES = ("ninfer_format", "ninfer_runtime", "ninfer_quant", "ninfer_server")

BLOCK_GPU_LIBRARIES = """
import importlib, importlib.abc, pkgutil, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"cupy", "cuda", "torch"}:
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Blocked())
count = 0
for root in sys.argv[1:]:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if module.name.rsplit(".", 1)[-1] == "cuda":
            continue
        importlib.import_module(module.name)
        count += 1
print(count)
"""


def test_every_cpu_module_imports_without_gpu_libraries():
    result = subprocess.run(
        [sys.executable, "-c", BLOCK_GPU_LIBRARIES, *PACKAGES],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 50


@pytest.mark.parametrize("name", PACKAGES)
def test_exported_names_are_sorted_and_exist(name):
    package = pkgutil.resolve_name(name)

    assert list(package.__all__) == sorted(package.__all__)
    for exported in package.__all__:
        assert hasattr(package, exported)
