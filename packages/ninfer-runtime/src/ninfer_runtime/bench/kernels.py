"""Kernels that belong to no op: those that measure a device, that make weights up, that send words."""

from __future__ import annotations

from ninfer_runtime.bench import ceilings
from ninfer_runtime.cuda import words
from ninfer_runtime.weights import synthetic

OTHER_KERNELS = ceilings.KERNELS | synthetic.KERNELS | {words.KERNEL}
