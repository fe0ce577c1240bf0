"""The options that say how tokens are drawn; the one-shot command and the server take the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ninfer_runtime.sampling.params import SamplingOverrides

R = TypeVar("R")

_RANGES = (
    ("--temperature", 0, 2, "Randomness; not with --greedy."),
    ("--top-p", 0, 1, "Share of the mass to draw from."),
    ("--min-p", 0, 1, "Least weight relative to the best."),
    ("--presence-penalty", -2, 2, "Penalty on tokens generated before."),
    ("--frequency-penalty", -2, 2, "The same for each time."),
)

_NAMES = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")

SAMPLING_OPTION_NAMES = ("greedy", *_NAMES, "seed")
"""Parameters of the heading Sampling; each command adds its own ``--seed``."""

GREEDY_CONFLICT = "--greedy and --temperature exclude each other"


def sampling_options(
    option_class: type[click.Option] = click.Option,
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add ``--greedy``, ``--temperature`` and the other sampling options to a click command.

    Args:
        option_class: Class of the options.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        for name, low, high, text in _RANGES:
            function = click.option(
                name,
                cls=option_class,
                type=click.FloatRange(low, high),
                metavar="NUMBER",
                help=text,
            )(function)
        function = click.option(
            "--top-k",
            cls=option_class,
            type=click.IntRange(0, 20),
            help="Candidates to draw from; 0 means 20.",
        )(function)
        return click.option(
            "--greedy",
            cls=option_class,
            is_flag=True,
            help="Take the best token; not with --temperature.",
        )(function)

    return decorate


def is_greedy_conflict(options: Mapping[str, Any]) -> bool:
    """Whether both ``--greedy`` and a temperature were given."""
    return bool(options["greedy"]) and options["temperature"] is not None


def sampling_overrides(options: Mapping[str, Any]) -> SamplingOverrides:
    """Make the values that replace the model's preset."""
    from ninfer_runtime.sampling.params import SamplingOverrides

    return SamplingOverrides(greedy=options["greedy"], **{name: options[name] for name in _NAMES})
