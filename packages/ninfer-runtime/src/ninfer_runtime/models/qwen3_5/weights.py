"""From the values of the parameters to the layers of the text model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Literal

import numpy as np

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import CapacityError, StartupError
from ninfer_runtime.layers.attention import GatedAttention
from ninfer_runtime.layers.embedding import Embedding
from ninfer_runtime.layers.gated_delta_net import GatedDeltaNet
from ninfer_runtime.layers.linear import Linear, Observe, StackedLinear
from ninfer_runtime.layers.mlp import GatedMLP
from ninfer_runtime.layers.moe import MixtureOfExperts
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.models.architecture import LogicalParameter, ObserveInput
from ninfer_runtime.models.parameter_source import ParameterSource
from ninfer_runtime.models.qwen3_5.config import (
    AttentionConfig,
    DeltaNetConfig,
    FeedForward,
    Mixer,
    ModelConfig,
    MoeConfig,
    RopeConfig,
    TextConfig,
)
from ninfer_runtime.models.qwen3_5.model import Block, TextModel
from ninfer_runtime.models.qwen3_5.moe_weights import mixture
from ninfer_runtime.models.qwen3_5.parameters import parameters, text_block

EMBEDDING = "text/token_embedding"
OUTPUT_HEAD = "text/output_head"

MATRIX_ORDER: Literal["F"] = "F"
"""Memory order of projections [N, K]: the product with a single row, which decoding consists of,
reads memory about twice as fast in this order as in C order (OpenBLAS, weights beyond the cache).
"""


def build_text_model(config: TextConfig, source: ParameterSource, device: Device) -> TextModel:
    """Read every parameter once, as float32, and build the model on `device`.

    Raises:
        StartupError: ``no_full_attention``: no layer sees the whole sequence.
        CapacityError: The weights do not fit into the free memory of the device.
    """
    rope = rope_of(config)
    weights = TextWeights(config, source, device)
    weights.check_capacity()
    embedding = weights.embedding()
    head = Linear(embedding.table) if weights.is_tied else weights.matrix(OUTPUT_HEAD)
    blocks = [weights.block(layer) for layer in range(len(config.mixers))]
    return TextModel(
        config, rope, embedding, blocks, weights.final_norm(), head, weights.num_bytes, device
    )


def rope_of(config: TextConfig) -> RopeConfig:
    """The rotation of the full attention layers.

    Raises:
        StartupError: ``no_full_attention``: no layer sees the whole sequence.
    """
    for mixer in config.mixers:
        if isinstance(mixer, AttentionConfig):
            return mixer.rope
    raise StartupError("no_full_attention", "model needs at least one full-attention layer")


def weight_memory(config: TextConfig, source: ParameterSource, device: Device) -> tuple[int, int]:
    """Bytes of the loaded weights, and the most that they take while they are loaded.

    Nothing is read.
    """
    weights = TextWeights(config, source, device)
    return weights.num_bytes, weights.loading_bytes


class TextWeights:
    """Puts parameters on the device and makes layers of them.

    Args:
        config: Geometry.
        source: Values of the parameters.
        device: Where the weights shall lie.
        observe: Is shown every input of every projection.

    Attributes:
        is_tied: The output head is the embedding's table.
    """

    def __init__(
        self,
        config: TextConfig,
        source: ParameterSource,
        device: Device,
        observe: ObserveInput | None = None,
    ) -> None:
        self._config = config
        self._observe = observe
        self._parameters = {p.name: p for p in parameters(ModelConfig(config))}
        self._source = source
        self._device = device
        self.is_tied = source.is_shared(EMBEDDING, OUTPUT_HEAD)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights in float32; a shared table counts once."""
        return sum(
            _num_bytes(parameter)
            for name, parameter in self._parameters.items()
            if not (self.is_tied and name == OUTPUT_HEAD)
        )

    @property
    def loading_bytes(self) -> int:
        """Bytes at the worst moment of loading: a matrix exists in C order and in its own."""
        copied = self._parameters.keys() - {EMBEDDING}
        if self.is_tied:
            copied -= {OUTPUT_HEAD}
        return self.num_bytes + max(_num_bytes(self._parameters[name]) for name in copied)

    def embedding(self) -> Embedding:
        """The table of the tokens."""
        return Embedding(self.tensor(EMBEDDING))

    def block(self, layer: int) -> Block:
        """One layer of the text model."""
        return _block(self._config, self._config.mixers[layer], text_block(layer), self)

    def final_norm(self) -> OffsetRMSNorm:
        """The norm before the output head."""
        return OffsetRMSNorm(self.tensor("text/final_norm"), self._config.rms_norm_eps)

    def check_capacity(self) -> None:
        """Refuse weights that do not fit; see `build_text_model`."""
        free = self._device.memory().free_bytes
        if self.loading_bytes > free:
            raise CapacityError(
                f"loading the weights in float32 needs {self.loading_bytes} bytes, "
                f"but only {free} bytes are free on {self._device.kind}",
                needed_bytes=self.loading_bytes,
                free_bytes=free,
                hint="free memory or use a smaller model",
            )

    def tensor(self, name: str) -> Tensor:
        """A parameter as it is."""
        return self._device.from_host(self._source.read(self._parameters[name]))

    def matrix(self, name: str) -> Linear:
        """A projection."""
        values = np.asarray(self._source.read(self._parameters[name]), order=MATRIX_ORDER)
        return Linear(self._device.from_host(values), self.observer(name))

    def observer(self, name: str) -> Observe | None:
        """What is shown the input of a projection."""
        if self._observe is None:
            return None
        return partial(self._observe, self._parameters[name].inputs[0])

    def stacked(self, prefix: str, roles: Sequence[str]) -> StackedLinear:
        """The matrices ``prefix + role``, one below the other."""
        names = [prefix + role for role in roles]
        widths = [self._parameters[name].shape[0] for name in names]
        observe = self.observer(names[0])
        return StackedLinear(self._stack(names, MATRIX_ORDER), widths, observe)

    def bank(self, names: Sequence[str]) -> Tensor:
        """The named matrices, one below the other; each is contiguous, as it is used alone."""
        return self._stack(names, "C")

    def _stack(self, names: Sequence[str], order: Literal["C", "F"]) -> Tensor:
        members = [self._parameters[name] for name in names]
        rows = sum(member.shape[0] for member in members)
        weight = np.empty((rows, members[0].shape[1]), np.float32, order=order)
        end = 0
        for member in members:
            begin, end = end, end + member.shape[0]
            weight[begin:end] = self._source.read(member)
        return self._device.from_host(weight)


def _num_bytes(parameter: LogicalParameter) -> int:
    return prod(parameter.shape) * np.dtype(np.float32).itemsize


def _block(config: TextConfig, mixer: Mixer, prefix: str, weights: TextWeights) -> Block:
    eps = config.rms_norm_eps
    return Block(
        input_norm=OffsetRMSNorm(weights.tensor(f"{prefix}input_norm"), eps),
        mixer=(
            _attention(mixer, f"{prefix}attention/", weights, eps)
            if isinstance(mixer, AttentionConfig)
            else _delta_net(mixer, f"{prefix}gdn/", weights, eps)
        ),
        post_attention_norm=OffsetRMSNorm(weights.tensor(f"{prefix}post_attention_norm"), eps),
        feed_forward=_feed_forward(config.feed_forward, prefix, weights),
    )


def _feed_forward(
    config: FeedForward, prefix: str, weights: TextWeights
) -> GatedMLP | MixtureOfExperts:
    if isinstance(config, MoeConfig):
        return mixture(config, prefix, weights)
    return GatedMLP(
        weights.stacked(f"{prefix}mlp/", ("gate", "up")),
        weights.matrix(f"{prefix}mlp/down"),
    )


def _attention(
    config: AttentionConfig, prefix: str, weights: TextWeights, eps: float
) -> GatedAttention:
    return GatedAttention(
        projection=weights.stacked(prefix, ("query", "key", "gate", "value")),
        query_norm=OffsetRMSNorm(weights.tensor(f"{prefix}query_norm"), eps),
        key_norm=OffsetRMSNorm(weights.tensor(f"{prefix}key_norm"), eps),
        output=weights.matrix(f"{prefix}output"),
        head_dim=config.head_dim,
    )


def _delta_net(
    config: DeltaNetConfig, prefix: str, weights: TextWeights, eps: float
) -> GatedDeltaNet:
    roles = ("query", "key", "value", "z", "a_projection", "b_projection")
    stacked = weights.stacked(prefix, roles)
    heads = config.linear_num_value_heads
    return GatedDeltaNet(
        projection=StackedLinear(
            stacked.weight,
            (config.conv_channels, config.value_width, heads, heads),
            stacked.observe,
        ),
        convolution=weights.tensor(f"{prefix}convolution"),
        a_log=weights.tensor(f"{prefix}a_log"),
        dt_bias=weights.tensor(f"{prefix}dt_bias"),
        norm=weights.tensor(f"{prefix}norm"),
        output=weights.matrix(f"{prefix}output"),
        eps=eps,
    )
