"""From the names that a store gives its weights to the logical parameters of a model."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ninfer_format.errors import CheckpointError, UnsupportedConfigError
from ninfer_quant.sources.logical import LogicalSource, reshape, select_rows, transpose
from ninfer_quant.sources.planned_store import PlannedStore
from ninfer_quant.sources.store import AbsentSource, ParameterStore, TensorStore, WeightStore
from ninfer_runtime.models.architecture import Architecture, SourceView

_DESCRIPTIONS = frozenset(
    ("quantization_config", "_name_or_path", "transformers_version", "torch_dtype", "dtype")
)
"""A configuration of nothing but these says nothing about the model."""

_NO_SHAPES = frozenset(
    (
        "architectures",
        "model_type",
        "max_position_embeddings",
        "tie_word_embeddings",
        "rms_norm_eps",
        "rope_parameters",
    )
)
"""Members of the text configuration that change no shape and no order of rows."""


class WrongShapeError(CheckpointError):
    """A tensor has another shape than the configuration asks for.

    Attributes:
        description: The tensor with both shapes.
        store_path: Where the tensor is.
    """

    def __init__(self, store: TensorStore, source: LogicalSource, view: SourceView) -> None:
        self.description = f"{view.tensor} {list(source.shape)}, expected {list(view.tensor_shape)}"
        self.store_path = store.path
        super().__init__(
            f"tensors have the wrong shape (1): {self.description}",
            path=store.path,
            tensors=(view.tensor,),
            hint="do config.json and the weights belong together?",
        )


class ParameterSources:
    """Finds the sources of a model's parameters in any store.

    Args:
        architecture: Knows the names of tensors.
        configs: Component configurations of the model.
        shapes: Shapes of its parameters.
    """

    def __init__(
        self,
        architecture: Architecture,
        configs: Mapping[str, Mapping[str, Any]],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._architecture = architecture
        self._configs = configs
        self._shapes = shapes
        self._views: dict[WeightStore, Mapping[str, SourceView]] = {}

    def find(self, name: str, store: WeightStore) -> LogicalSource:
        """The source of a parameter, or an `AbsentSource` if the store does not have it.

        Raises:
            CheckpointError: A tensor has another shape, or the store is of another model.
        """
        shape = self._shapes[name]
        if isinstance(store, ParameterStore):
            if name not in store.names:
                return AbsentSource(shape, (name,), store.path)
            return store.parameter(name, shape)
        if not isinstance(store, TensorStore):
            raise CheckpointError("has neither tensors nor parameters by name", path=store.path)
        component = name.split("/", 1)[0]
        view = self._views_of(store, component).get(name)
        if view is None:
            return AbsentSource(shape, (name,), store.path)
        return _view_source(store, view, shape)

    def _views_of(self, store: TensorStore, component: str) -> Mapping[str, SourceView]:
        if store not in self._views:
            if component not in self._architecture.companions:
                self._check_config(store)
            self._views[store] = self._architecture.source_views(self._configs, store.names)
        return self._views[store]

    def _check_config(self, store: TensorStore) -> None:
        """Refuse weights whose configuration says that they have another geometry."""
        if not set(store.config) - _DESCRIPTIONS:
            return
        text = self._configs["text"]
        try:
            found = self._architecture.component_configs(store.config, ("text",))["text"]
        except UnsupportedConfigError as error:
            raise CheckpointError(
                f"its configuration is not that of the model: {error}", path=store.path
            ) from error
        # The model may have members that only its other components ask for.
        keys = [key for key in found if key not in _NO_SHAPES and key in text]
        wrong = [
            f"{key} = {found[key]!r}, not {text[key]!r}" for key in keys if found[key] != text[key]
        ]
        if wrong:
            raise CheckpointError(
                f"its configuration is not that of the model: {'; '.join(wrong)}", path=store.path
            )


def _view_source(store: TensorStore, view: SourceView, shape: tuple[int, ...]) -> LogicalSource:
    """Read a parameter of `shape` through a view of a tensor."""
    missing = store.missing_parts(view.tensor)
    if missing or isinstance(store, PlannedStore):
        return AbsentSource(shape, missing or (view.tensor,), store.path, is_planned=not missing)
    source = store.tensor(view.tensor)
    if source.shape != view.tensor_shape:
        raise WrongShapeError(store, source, view)
    if view.rows is not None:
        if len(source.shape) > 2:
            source = reshape(source, (prod(source.shape[:-1]), source.shape[-1]))
        source = select_rows(source, view.rows)
    if view.axes is not None:
        source = transpose(source, view.axes)
    return reshape(source, shape)
