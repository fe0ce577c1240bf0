"""The options that say which model runs and where, and how their defaults are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import click

from ninfer_format.commandline import Progress, Terminal
from ninfer_runtime.cli.user_path import UserPath
from ninfer_runtime.engine.options import Backend

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ninfer_runtime.engine.model_info import ModelInfo
    from ninfer_runtime.engine.progress import ShowProgress

R = TypeVar("R")

KV_DTYPES = ("bf16", "int8", "fp8", "nvfp4", "k8v4", "fp32")
"""Names of `ninfer_runtime.kv.formats`, which needs NumPy."""

MODEL_OPTION_NAMES = ("backend", "device", "kv_dtype", "cuda_graph")


def model_options(
    option_class: type[click.Option] = click.Option,
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add MODEL, ``--backend``, ``--device``, ``--kv-dtype`` and ``--no-cuda-graph``.

    Args:
        option_class: Class of the options.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        function = click.option(
            "--cuda-graph/--no-cuda-graph",
            cls=option_class,
            default=True,
            help="Run recorded steps on a GPU, or launch every kernel alone.  [default: recorded]",
        )(function)
        function = click.option(
            "--kv-dtype",
            cls=option_class,
            type=click.Choice(KV_DTYPES),
            help="How keys and values are stored; fp32 on the CPU only."
            "  [default: bf16, on the CPU fp32]",
        )(function)
        function = click.option(
            "--device",
            cls=option_class,
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Number of the device among those of its kind.",
        )(function)
        function = click.option(
            "--backend",
            cls=option_class,
            type=click.Choice(get_args(Backend)),
            help="What executes the model.  [default: NINFER_BACKEND, else auto]",
        )(function)
        return click.argument("model", required=False, type=UserPath(), metavar="[MODEL.ninfer]")(
            function
        )

    return decorate


def choose_model(terminal: Terminal, named: Path | None) -> Path:
    """Find the artifact: the one that is named, else NINFER_MODEL, else the built-in one.

    Raises:
        UsageError: NINFER_MODEL is empty.
        StartupError: ``model_missing``: the built-in model is not installed.
    """
    from ninfer_runtime import builtin_model, environment

    if named is not None:
        return named
    configured = environment.model()
    if configured is not None:
        return configured
    built_in = builtin_model.path()
    terminal.note(f"no MODEL given: using the built-in model {built_in.stem}")
    return built_in


def choose_backend(named: Backend | None) -> Backend:
    """Take the backend that is named, else NINFER_BACKEND, else ``auto``.

    Raises:
        UsageError: NINFER_BACKEND is empty or unknown.
    """
    from ninfer_runtime import environment

    return named or environment.backend() or "auto"


def show_progress(terminal: Terminal) -> ShowProgress:
    """What shows the work of loading in this terminal."""

    def show(
        description: str, total: int, /, *, in_bytes: bool = False
    ) -> AbstractContextManager[Progress]:
        return Progress(terminal, description, total=total, unit="bytes" if in_bytes else "steps")

    return show


def show_model(terminal: Terminal, info: ModelInfo) -> None:
    """Say with ``-v`` what was loaded."""
    terminal.detail(
        f"{info.name}: {info.architecture}, {info.num_parameters:,} parameters in "
        f"{', '.join(info.formats)}, {info.public_tokens} tokens, context {info.max_context} "
        f"of {info.max_position_embeddings}"
    )
