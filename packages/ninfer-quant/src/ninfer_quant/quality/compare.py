"""Comparing the parameters of two models, some rows in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from ninfer_format.errors import UsageError
from ninfer_format.workers import Advance, run_tasks
from ninfer_quant.errors import ConversionError
from ninfer_quant.methods.request import first_nonfinite
from ninfer_quant.quality.agreement import Agreement
from ninfer_quant.quality.compared_model import ComparedModel, ComparedParameter
from ninfer_quant.sources.logical import LogicalSource

_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True, eq=False, slots=True)
class ParameterComparison:
    """One parameter of several models, measured against the first of them.

    Attributes:
        name: Its name.
        shape: Rows and columns as they were compared.
        rows: Number of rows that were compared.
        sides: The parameter in every model.
        agreements: How every model but the first agrees with the first.
    """

    name: str
    shape: tuple[int, ...]
    rows: int
    sides: tuple[ComparedParameter, ...]
    agreements: tuple[Agreement, ...]


class Comparison:
    """A comparison that is ready to run.

    Args:
        models: What the others are measured against, and the others.
        selectors: Shell patterns over names of parameters; none for all.
        rows: Most rows of every parameter, evenly spaced; None for all.

    Attributes:
        names: Parameters that all models have, in the order of the first.
        only_some: Parameters that not all of them have.

    Raises:
        UsageError: A selector matches nothing, or the models have no parameter in common.
        ConversionError: Parameters of one name differ in size.
    """

    def __init__(
        self,
        models: Sequence[ComparedModel],
        *,
        selectors: Sequence[str] = (),
        rows: int | None = None,
    ) -> None:
        self._models = tuple(models)
        self._rows = rows
        every = dict.fromkeys(name for model in models for name in model.parameters)
        chosen = _selected(list(every), selectors)
        self.names = [name for name in chosen if all(name in model.parameters for model in models)]
        self.only_some = [name for name in chosen if name not in set(self.names)]
        if not self.names:
            raise UsageError("the models have no parameter in common")
        for name in self.names:
            _check_sizes(name, models)

    @property
    def total_elements(self) -> int:
        """How much `run` will count."""
        first = self._models[0]
        sources = [first.parameters[name].rows() for name in self.names]
        return sum(len(self._row_list(source)) * source.shape[1] for source in sources)

    def run(self, *, jobs: int, advance: Advance) -> list[ParameterComparison]:
        """Compare.

        Args:
            jobs: Number of worker threads.
            advance: Counts elements, `total_elements` in all.

        Raises:
            ConversionError: A value is not finite; parameter and place are named.
        """
        tasks: list[Callable[[Advance], ParameterComparison]] = [
            partial(self._compare, name) for name in self.names
        ]
        return run_tasks(tasks, jobs=jobs, advance=advance)

    def _compare(self, name: str, advance: Advance) -> ParameterComparison:
        sides = tuple(model.parameters[name] for model in self._models)
        first = sides[0].rows()
        agreements = tuple(Agreement() for _ in sides[1:])
        rows = self._row_list(first)
        for begin, end in _spans(rows, first.shape[1]):
            values = _read(name, self._models[0], sides[0].source, begin, end)
            for model, side, agreement in zip(self._models[1:], sides[1:], agreements, strict=True):
                agreement.add(values, _read(name, model, side.source, begin, end))
            advance(end - begin, name)
        return ParameterComparison(name, sides[0].source.shape, len(rows), sides, agreements)

    def _row_list(self, source: LogicalSource) -> Sequence[int]:
        total = source.shape[0]
        if self._rows is None or self._rows >= total:
            return range(total)
        return [index * total // self._rows for index in range(self._rows)]


def _selected(names: list[str], selectors: Sequence[str]) -> list[str]:
    if not selectors:
        return names
    chosen: set[str] = set()
    for selector in selectors:
        found = [name for name in names if name == selector or fnmatchcase(name, selector)]
        if not found:
            raise UsageError(f"--select {selector!r} matches no parameter")
        chosen.update(found)
    return [name for name in names if name in chosen]


def _check_sizes(name: str, models: Sequence[ComparedModel]) -> None:
    sizes = [model.parameters[name].source.num_elements for model in models]
    if len(set(sizes)) > 1:
        raise ConversionError(
            f"parameter {name} has {' and '.join(map(str, sizes))} elements: these are not "
            "versions of one model"
        )


def _spans(rows: Sequence[int], width: int) -> Iterator[tuple[int, int]]:
    """Ranges of elements of some rows, none much longer than a chunk."""
    if isinstance(rows, range):
        elements = len(rows) * width
        for begin in range(0, elements, _CHUNK_ELEMENTS):
            yield begin, min(begin + _CHUNK_ELEMENTS, elements)
        return
    for row in rows:
        yield row * width, (row + 1) * width


def _read(
    name: str, model: ComparedModel, source: LogicalSource, begin: int, end: int
) -> np.ndarray:
    values = source.read_values(begin, end)
    position = first_nonfinite(values)
    if position is not None:
        raise ConversionError(
            f"parameter {name}: element {begin + position} is {float(values[position])}",
            path=model.path,
        )
    return values
