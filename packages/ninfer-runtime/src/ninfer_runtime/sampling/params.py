"""Sampling parameters: their domains, the models' presets and what a caller may override."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ninfer_format.errors import UsageError

MAX_CANDIDATES = 20
"""Most tokens that a draw chooses among; `top_k` 0 means this number."""

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, MAX_CANDIDATES),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
"""Domain of every parameter, both ends included."""


def _check(name: str, value: float) -> None:
    """Refuse a value outside its domain; NaN and infinities are outside every domain."""
    low, high = RANGES[name]
    allowed = (int,) if name == "top_k" else (int, float)
    is_number = isinstance(value, allowed) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        kind = "an integer" if name == "top_k" else "a number"
        raise UsageError(f"{name} must be {kind} in {low}..{high}, found {value!r}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from a row of logits.

    Attributes:
        temperature: In [0, 2]; 0 takes the best token.
        top_p: In [0, 1]; the shortest prefix of candidates with this share of the mass is kept,
            at least one.
        top_k: In 0..20; number of candidates, 0 means 20.
        min_p: In [0, 1]; candidates below this share of the best one's weight are dropped.
        presence_penalty: In [-2, 2]; subtracted from the logit of every token generated before.
        frequency_penalty: In [-2, 2]; subtracted once for each time it was generated.

    Raises:
        UsageError: A value is outside its domain; the message names both.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float

    def __post_init__(self) -> None:
        """Check every domain."""
        for field in fields(self):
            _check(field.name, getattr(self, field.name))

    @property
    def has_penalties(self) -> bool:
        """Whether the draw depends on what was generated before."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of one request are drawn: the same values give the same tokens.

    Attributes:
        params: From which distribution.
        seed: Seed of the random numbers, u64.

    Raises:
        UsageError: The seed is not a u64.
    """

    params: SamplingParams
    seed: int

    def __post_init__(self) -> None:
        """Check the seed."""
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed must be an integer in 0..{(1 << 64) - 1}, found {self.seed}")


GREEDY = Sampling(SamplingParams(0.0, 1.0, 0, 0.0, 0.0, 0.0), seed=0)
"""The best token each time."""


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """What a caller asks for instead of the preset; None keeps the preset's value.

    Attributes:
        temperature: See `SamplingParams`, as the others.
        top_p: See `SamplingParams`.
        top_k: See `SamplingParams`.
        min_p: See `SamplingParams`.
        presence_penalty: See `SamplingParams`.
        frequency_penalty: See `SamplingParams`.
        greedy: Take the best token whatever the temperature says.

    Raises:
        UsageError: A value is outside its domain; the message names both.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    greedy: bool = False

    def __post_init__(self) -> None:
        """Check the domain of every value that is given."""
        for name in RANGES:
            value = getattr(self, name)
            if value is not None:
                _check(name, value)

    def apply(self, preset: SamplingParams) -> SamplingParams:
        """Return `preset` with the values that are given here.

        At temperature 0 the penalties of the preset do not apply: they are there to keep random
        text from repeating itself, and a greedy answer is the argmax of the model's own logits.
        Penalties that the caller gives do apply.
        """
        given = {name: getattr(self, name) for name in RANGES}
        if self.greedy:
            given["temperature"] = 0.0
        values = {
            name: getattr(preset, name) if value is None else value for name, value in given.items()
        }
        if values["temperature"] == 0:
            values["presence_penalty"] = self.presence_penalty or 0.0
            values["frequency_penalty"] = self.frequency_penalty or 0.0
        return SamplingParams(**values)


def preset(is_moe: bool, thinking: bool) -> SamplingParams:
    """Return the sampling that a model of the Qwen3.5 family was tuned for.

    Args:
        is_moe: The feed-forward layers are mixtures of experts.
        thinking: The answer starts with the model's thoughts.
    """
    return SamplingParams(
        temperature=1.0 if thinking else 0.7,
        top_p=0.95 if thinking else 0.8,
        top_k=MAX_CANDIDATES,
        min_p=0.0,
        presence_penalty=0.0 if thinking and not is_moe else 1.5,
        frequency_penalty=0.0,
    )
