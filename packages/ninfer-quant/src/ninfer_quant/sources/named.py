"""The sources that a recipe reads by name, opened when it asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ninfer_format.errors import CheckpointError
from ninfer_quant.errors import RecipeError
from ninfer_quant.sources.open import locate, open_store
from ninfer_quant.sources.planned_store import PlannedStore, has_no_weights
from ninfer_quant.sources.store import WeightStore

BASE = "base"
"""Name of the model's own checkpoint."""


class NamedSources(Mapping[str, WeightStore]):
    """Stores by name; a name that was not given is an error that says which option is missing.

    Args:
        base: The model's own checkpoint.
        references: Paths or Hub ids of the others, by name.
        may_lack_weights: Names of those for which a folder with a configuration, or with that and
            an index, will do.

    Attributes:
        configs: Component configurations of the model to be, as soon as they are known.
        opened: What has been asked for so far.
    """

    def __init__(
        self,
        base: WeightStore,
        references: Mapping[str, str],
        *,
        may_lack_weights: Collection[str] = (),
    ) -> None:
        self.configs: Mapping[str, Mapping[str, Any]] = {}
        self.opened: dict[str, WeightStore] = {BASE: base}
        self._references = dict(references)
        self._may_lack_weights = may_lack_weights

    def __getitem__(self, name: str) -> WeightStore:
        if name not in self.opened:
            if name not in self._references:
                raise RecipeError(
                    f"the source {name!r} was not given", hint=f"give --source {name}=PATH"
                )
            may_lack_weights = name in self._may_lack_weights
            path = locate(self._references[name], with_weights=not may_lack_weights)
            if not path.exists():
                raise CheckpointError(f"--source {name}: no such file or folder", path=path)
            is_planned = may_lack_weights and has_no_weights(path)
            self.opened[name] = PlannedStore(path) if is_planned else open_store(path, self.configs)
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
