"""The sources that a recipe reads by name, opened when it asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ninfer_format.errors import CheckpointError
from ninfer_quant.errors import RecipeError
from ninfer_quant.sources.open import locate, open_store
from ninfer_quant.sources.store import WeightStore

BASE = "base"
"""Name of the model's own checkpoint."""


class NamedSources(Mapping[str, WeightStore]):
    """Stores by name; a name that was not given is an error that says which option is missing.

    Args:
        base: The model's own checkpoint.
        references: Paths or Hub ids of the others, by name.

    Attributes:
        configs: Component configurations of the model to be, as soon as they are known.
        opened: What has been asked for so far.
    """

    def __init__(self, base: WeightStore, references: Mapping[str, str]) -> None:
        self.configs: Mapping[str, Mapping[str, Any]] = {}
        self.opened: dict[str, WeightStore] = {BASE: base}
        self._references = dict(references)

    def __getitem__(self, name: str) -> WeightStore:
        if name not in self.opened:
            if name not in self._references:
                raise RecipeError(
                    f"the source {name!r} was not given", hint=f"give --source {name}=PATH"
                )
            path = locate(self._references[name])
            if not path.exists():
                raise CheckpointError(f"--source {name}: no such file or folder", path=path)
            self.opened[name] = open_store(path, self.configs)
        return self.opened[name]

    def __contains__(self, name: object) -> bool:
        return name in self.opened or name in self._references

    def __iter__(self) -> Iterator[str]:
        yield BASE
        yield from self._references

    def __len__(self) -> int:
        return 1 + len(self._references)

    @property
    def unopened(self) -> tuple[str, ...]:
        """Names that nothing has asked for."""
        return tuple(name for name in self._references if name not in self.opened)
