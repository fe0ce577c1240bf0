"""From the weights in a store to the layers of the text model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ninfer_runtime.errors import CapacityError, StartupError
from ninfer_runtime.layers.attention import GatedAttention
from ninfer_runtime.layers.embedding import Embedding
from ninfer_runtime.layers.gated_delta_net import GatedDeltaNet
from ninfer_runtime.layers.linear import Linear, Observe, StackedLinear
from ninfer_runtime.layers.mlp import GatedMLP
from ninfer_runtime.layers.moe import MixtureOfExperts
from ninfer_runtime.layers.norm import OffsetRMSNorm
from ninfer_runtime.models.architecture import ObserveInput
from ninfer_runtime.models.qwen3_5.config import (
    AttentionConfig,
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
from ninfer_runtime.models.qwen3_5.states import attention_layers
from ninfer_runtime.ops.gated_delta_net import DeltaWeights
from ninfer_runtime.weights.store import WeightStore

EMBEDDING = "text/token_embedding"
OUTPUT_HEAD = "text/output_head"


def build_text_model(config: TextConfig, store: WeightStore) -> TextModel:
    """Load every weight once and build the model on the store's device.

    Raises:
        StartupError: ``no_full_attention``: no layer sees the whole sequence.
        CapacityError: The weights do not fit into the free memory of the device.
    """
    rope = rope_of(config)
    _check_capacity(store)
    layers = TextLayers(config, store)
    embedding = layers.embedding()
    if store.is_shared(EMBEDDING, OUTPUT_HEAD):
        head = Linear(embedding.table)
    else:
        head = layers.projection(OUTPUT_HEAD)
    blocks = [layers.block(layer) for layer in range(len(config.mixers))]
    return TextModel(
        config, rope, embedding, blocks, layers.final_norm(), head, store.num_bytes, store.device
    )


def rope_of(config: TextConfig) -> RopeConfig:
    """The rotation of the full attention layers.

    Raises:
        StartupError: ``no_full_attention``: no layer sees the whole sequence.
    """
    for layer in attention_layers(config):
        return layer.rope
    raise StartupError("no_full_attention", "model needs at least one full-attention layer")


def _check_capacity(store: WeightStore) -> None:
    free = store.device.memory().free_bytes
    if store.loading_bytes > free:
        raise CapacityError(
            f"loading the weights needs {store.loading_bytes} bytes, "
            f"but only {free} bytes are free on {store.device.kind}",
            needed_bytes=store.loading_bytes,
            free_bytes=free,
            hint="free memory or use a smaller model",
        )


class TextLayers:
    """Makes layers of the weights in a store.

    Args:
        config: Geometry.
        store: The weights.
        observe: Is shown every input of every projection.
    """

    def __init__(
        self, config: TextConfig, store: WeightStore, observe: ObserveInput | None = None
    ) -> None:
        self._config = config
        self._observe = observe
        self._parameters = {p.name: p for p in parameters(ModelConfig(config))}
        self.store = store

    def embedding(self) -> Embedding:
        """The table of the tokens."""
        return Embedding(self.store.table(EMBEDDING))

    def block(self, layer: int) -> Block:
        """One layer of the text model."""
        return _block(self._config, self._config.mixers[layer], text_block(layer), self)

    def final_norm(self) -> OffsetRMSNorm:
        """The norm before the output head."""
        return self.norm("text/final_norm")

    def norm(self, name: str) -> OffsetRMSNorm:
        """A norm relative to one."""
        return OffsetRMSNorm(self.store.tensor(name), self._config.rms_norm_eps)

    def projection(self, name: str) -> Linear:
        """A projection."""
        (weight,) = self.store.projections([name])
        return Linear(weight, self.observer(name))

    def stacked(self, prefix: str, roles: Sequence[str], *, first: int = 1) -> StackedLinear:
        """The projections ``prefix + role`` of one input, of which the first few count as one."""
        names = [prefix + role for role in roles]
        widths = [self._parameters[name].shape[0] for name in names]
        widths = [sum(widths[:first]), *widths[first:]]
        return StackedLinear(self.store.projections(names), widths, self.observer(names[0]))

    def observer(self, name: str) -> Observe | None:
        """What is shown the input of a projection."""
        if self._observe is None:
            return None
        return partial(self._observe, self._parameters[name].inputs[0])


def _block(config: TextConfig, mixer: Mixer, prefix: str, layers: TextLayers) -> Block:
    return Block(
        input_norm=layers.norm(f"{prefix}input_norm"),
        mixer=(
            _attention(mixer, f"{prefix}attention/", layers)
            if isinstance(mixer, AttentionConfig)
            else _delta_net(f"{prefix}gdn/", layers, config.rms_norm_eps)
        ),
        post_attention_norm=layers.norm(f"{prefix}post_attention_norm"),
        feed_forward=_feed_forward(config.feed_forward, prefix, layers),
    )


def _feed_forward(
    config: FeedForward, prefix: str, layers: TextLayers
) -> GatedMLP | MixtureOfExperts:
    if isinstance(config, MoeConfig):
        return mixture(config, prefix, layers)
    gate, up, down = (f"{prefix}mlp/{role}" for role in ("gate", "up", "down"))
    return GatedMLP(layers.store.gated(gate, up), layers.projection(down), layers.observer(gate))


def _attention(config: AttentionConfig, prefix: str, layers: TextLayers) -> GatedAttention:
    return GatedAttention(
        projection=layers.stacked(prefix, ("query", "key", "gate", "value")),
        query_norm=layers.norm(f"{prefix}query_norm"),
        key_norm=layers.norm(f"{prefix}key_norm"),
        output=layers.projection(f"{prefix}output"),
        head_dim=config.head_dim,
    )


def _delta_net(prefix: str, layers: TextLayers, eps: float) -> GatedDeltaNet:
    roles = ("query", "key", "value", "z", "a_projection", "b_projection")
    tensor = layers.store.tensor
    return GatedDeltaNet(
        # Queries, keys and values together are what is convolved.
        projection=layers.stacked(prefix, roles, first=3),
        weights=DeltaWeights(
            convolution=tensor(f"{prefix}convolution"),
            a_log=tensor(f"{prefix}a_log"),
            dt_bias=tensor(f"{prefix}dt_bias"),
            norm=tensor(f"{prefix}norm"),
        ),
        output=layers.projection(f"{prefix}output"),
        eps=eps,
    )
