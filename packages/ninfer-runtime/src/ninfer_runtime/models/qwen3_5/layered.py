"""The text model layer by layer, for work that looks at every layer and needs no other meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.models.architecture import ObserveInput, TextLayer
from ninfer_runtime.models.parameter_source import ParameterSource
from ninfer_runtime.models.qwen3_5.config import TextConfig
from ninfer_runtime.models.qwen3_5.model import Block, new_state, text_rotation
from ninfer_runtime.models.qwen3_5.weights import TextWeights, rope_of

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
        embedding = TextWeights(self._config, self._source, self._device).embedding()
        return [
            self._device.to_host(embedding(self._device.from_host(ids.astype(np.int32))))
            for ids in token_ids
        ]

    def load_layer(self, index: int, observe: ObserveInput) -> TextLayer:
        """Load one layer."""
        block = TextWeights(self._config, self._source, self._device, observe).block(index)

        def execute(rows: np.ndarray) -> np.ndarray:
            return self._execute(index, block, rows)

        return execute

    def _execute(self, index: int, block: Block, rows: np.ndarray) -> np.ndarray:
        T = len(rows)
        own = replace(self._config, mixers=self._config.mixers[index : index + 1])
        state = new_state(own, T, self._device)
        # The layer writes into its rows.
        x = self._device.from_host(rows.copy())
        rotation = text_rotation(self._rope, 0, T, self._device)
        block(x, rotation, iter(state.caches), iter(state.recurrent))
        return self._device.to_host(x)

    def observe_head(self, rows: np.ndarray, observe: ObserveInput) -> None:
        """Show what the output head gets."""
        norm = TextWeights(self._config, self._source, self._device).final_norm()
        observe(HEAD_INPUT, norm(self._device.from_host(rows)))
