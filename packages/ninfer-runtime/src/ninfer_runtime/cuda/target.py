"""What the choice of a kernel depends on besides the problem; known without a device too."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.cuda.kernel import architecture_of, capability_of

_BLOCK_RESERVED_BYTES = 1024
"""Shared memory that the system keeps for each block."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of GPU.

    Attributes:
        capability: Compute capability.
        multiprocessors: Number of SMs.
        shared_bytes: Largest dynamic shared memory of a block.
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int

    @property
    def architecture(self) -> str:
        """What kernels are compiled for, for example ``sm_90a``."""
        return architecture_of(self.capability)

    @property
    def has_clusters(self) -> bool:
        """Whether blocks form clusters, copy in bulk, and launches may overlap."""
        return self.capability >= (9, 0)

    @property
    def has_wgmma(self) -> bool:
        """Whether warpgroups multiply from shared memory: Hopper alone."""
        return self.capability == (9, 0)

    def shared_for(self, blocks: int) -> int:
        """Largest dynamic shared memory of each of several blocks on one SM."""
        return (self.shared_bytes + _BLOCK_RESERVED_BYTES) // blocks - _BLOCK_RESERVED_BYTES


_KIB = 1024

TYPICAL_TARGETS = {
    architecture: Target(capability_of(architecture), multiprocessors, shared_kib * _KIB)
    for architecture, multiprocessors, shared_kib in (
        ("sm_80", 108, 163),  # A100
        ("sm_86", 84, 99),  # A40
        ("sm_89", 128, 99),  # RTX 4090
        ("sm_90a", 132, 227),  # H100, H200
        ("sm_100", 148, 227),  # B200
        ("sm_120", 170, 99),  # RTX 5090
    )
}
"""One GPU of each architecture, for compiling without a device."""
