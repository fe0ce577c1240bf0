"""Every kernel of every op: what is compiled ahead of use, and by the tests for all architectures.

An op with kernels has a module ``cuda`` with a function ``kernels(target)``.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec

import ninfer_runtime.ops
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.target import Target


def ops_with_kernels() -> list[str]:
    """Names of the ops that run on a GPU."""
    return sorted(
        module.name
        for module in pkgutil.iter_modules(ninfer_runtime.ops.__path__)
        if module.ispkg and find_spec(f"ninfer_runtime.ops.{module.name}.cuda")
    )


def every_kernel(op: str, target: Target) -> set[Kernel]:
    """The kernels of one op that models need on a kind of GPU."""
    module = import_module(f"ninfer_runtime.ops.{op}.cuda")
    return set(module.kernels(target))
