"""Kernels that belong to no op: those that measure a device, and those that make weights up."""

from __future__ import annotations

from ninfer_runtime.bench import ceilings
from ninfer_runtime.weights import synthetic

OTHER_KERNELS = ceilings.KERNELS | synthetic.KERNELS
