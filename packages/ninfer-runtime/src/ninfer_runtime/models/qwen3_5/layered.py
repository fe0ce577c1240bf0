"""The text model layer by layer, for work that looks at every layer and needs no other meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.kv.formats import kv_formats
from ninfer_runtime.kv.pages import pages_for
from ninfer_runtime.kv.slots import RING
from ninfer_runtime.models.architecture import ObserveInput, TextLayer
from ninfer_runtime.models.parameter_source import ParameterSource
from ninfer_runtime.models.qwen3_5.config import ModelConfig, TextConfig
from ninfer_runtime.models.qwen3_5.model import Block, text_rotation
from ninfer_runtime.models.qwen3_5.parameters import parameters
from ninfer_runtime.models.qwen3_5.states import new_state
from ninfer_runtime.models.qwen3_5.weights import TextLayers, rope_of
from ninfer_runtime.models.step import Place, text_step
from ninfer_runtime.ops.add import add
from ninfer_runtime.weights.host import HostWeights

HEAD_INPUT = "text/final_hidden"


class LayeredTextModel:
    """Implements `ninfer_runtime.models.architecture.LayeredText`; see there for contracts.

    Args:
        config: Geometry.
        source: Values of the parameters.
        device: Where layers run.
    """

    def __init__(self, config: TextConfig, source: ParameterSource, device: Device) -> None:
        self._config = config
        self._rope = rope_of(config)
        self._source = source
        self._device = device

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self._config.mixers)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, V."""
        return self._config.vocab_size

    def embed(self, token_ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Hidden rows [T, D] before the first layer."""
        embedding = self._layers().embedding()
        return [
            self._device.to_host(embedding(self._device.from_host(ids.astype(np.int32))))
            for ids in token_ids
        ]

    def load_layer(self, index: int, observe: ObserveInput) -> TextLayer:
        """Load one layer."""
        block = self._layers(observe).block(index)

        def execute(rows: np.ndarray) -> np.ndarray:
            return self._execute(index, block, rows)

        return execute

    def observe_head(self, rows: np.ndarray, observe: ObserveInput) -> None:
        """Show what the output head gets."""
        norm = self._layers().final_norm()
        observe(HEAD_INPUT, norm(self._device.from_host(rows)))

    def _layers(self, observe: ObserveInput | None = None) -> TextLayers:
        wanted = parameters(ModelConfig(self._config))
        store = HostWeights(wanted, self._source, self._device)
        return TextLayers(self._config, store, observe)

    def _execute(self, index: int, block: Block, rows: np.ndarray) -> np.ndarray:
        pages = tuple(range(pages_for(len(rows))))
        state = new_state(
            replace(self._config, mixers=self._config.mixers[index : index + 1]),
            self._device,
            num_pages=len(pages),
            num_slots=1,
            ring=RING,
            kv_format=next(iter(kv_formats(self._device.kind).values())),
        )
        # The tokens are known as rows only; which ids the step has does not matter.
        step = text_step(self._device, [np.zeros(len(rows), np.int32)], [Place(pages)])
        # The layer writes into its rows.
        x = self._device.from_host(rows.copy())
        rotation = text_rotation(self._rope, step)
        added = block(x, None, rotation, step, iter(state.pages), iter(state.slots))
        return self._device.to_host(add(x, added.compute(), out=x))
