"""A picture of a sweep: size against divergence."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ninfer_format.commandline import new_output
from ninfer_format.errors import UsageError
from ninfer_quant.errors import MissingPackageError

_SUFFIXES = (".png", ".svg", ".pdf")
_COLOURS = 10
"""Different colours that matplotlib takes in turn."""
_MARKERS = ("o", "s", "^", "D")


def check_picture(path: Path) -> None:
    """Refuse early what would only fail after hours of work.

    Raises:
        UsageError: The name tells no kind of picture.
        MissingPackageError: matplotlib is not installed.
    """
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"a picture is one of {', '.join(_SUFFIXES)}", path=path)
    if find_spec("matplotlib") is None:
        raise MissingPackageError(
            "drawing a picture needs the package matplotlib",
            hint="pip install 'ninfer-quant[plot]', or leave --picture out",
        )


def draw_sweep(path: Path, rows: Sequence[dict[str, Any]], *, force: bool) -> None:
    """Draw mean divergences over file sizes.

    Args:
        path: The picture; its suffix tells the kind.
        rows: What `run_sweep` gave. The reference has no divergence and is left out.
        force: Replace an existing file.
    """
    from matplotlib.figure import Figure

    measured = [row for row in rows if row["divergence"] is not None]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    # A legend, because recipes of nearly equal size would write over each other.
    for index, row in enumerate(measured):
        axes.plot(
            row["file_bytes"] / 2**20,
            row["divergence"]["mean_kl"],
            _MARKERS[index // _COLOURS % len(_MARKERS)],
            label=row["recipe"],
        )
    axes.set_xlabel("size of the artifact, MiB")
    axes.set_ylabel("mean KL divergence from BF16, nats")
    axes.set_yscale("log")
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.legend(loc="outside right upper")
    with new_output(path, force=force) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=150)
