"""How many threads NumPy multiplies matrices with while workers encode."""

from __future__ import annotations

import os


def keep_blas_on_one_thread() -> None:
    """Let every worker multiply on its own thread; NumPy reads this when it is first imported.

    Threads of OpenBLAS under every worker wait for each other: on two busy processors error
    feedback took six times as long with them. What the environment says already counts.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
