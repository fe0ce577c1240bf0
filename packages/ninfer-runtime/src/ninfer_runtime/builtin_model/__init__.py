"""The small trained model that the package ships, so that every command works at once."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ninfer_runtime.errors import StartupError

NAME = "tiny-qwen3_5.ninfer"


def path() -> Path:
    """Return where the built-in model lies.

    Raises:
        StartupError: ``model_missing``: this installation has no such file.
    """
    model = Path(str(files(__name__) / NAME))
    if not model.is_file():
        raise StartupError(
            "model_missing",
            "this installation lacks the built-in model",
            path=str(model),
            hint="name a MODEL, or install the package again",
        )
    return model
