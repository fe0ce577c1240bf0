"""The options that say how tokens are drawn; the one-shot command and the server take the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ninfer_runtime.sampling.params import MAX_CANDIDATES, RANGES, SamplingOverrides

R = TypeVar("R")

_HELP = {
    "temperature": "Randomness; not with --greedy.",
    "top_p": "Share of the mass to draw from.",
    "min_p": "Least weight relative to the best.",
    "presence_penalty": "Penalty on tokens generated before.",
    "frequency_penalty": "The same for each time.",
}

SAMPLING_OPTION_NAMES = ("greedy", *RANGES, "seed")
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
        for name, text in _HELP.items():
            function = click.option(
                f"--{name.replace('_', '-')}",
                cls=option_class,
                type=click.FloatRange(*RANGES[name]),
                metavar="NUMBER",
                help=text,
            )(function)
        function = click.option(
            "--top-k",
            cls=option_class,
            type=click.IntRange(0, MAX_CANDIDATES),
            help=f"Candidates to draw from; 0 means {MAX_CANDIDATES}.",
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
    return SamplingOverrides(greedy=options["greedy"], **{name: options[name] for name in RANGES})
