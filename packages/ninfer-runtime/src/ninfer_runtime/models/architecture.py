"""What the converter and the loader need to know about an architecture.

An architecture folder provides one object that satisfies `Architecture`. The converter asks it
for logical parameters and where a checkpoint keeps them; the loader asks it for a model that runs.
Neither knows any architecture by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.device.tensor import Tensor
    from ninfer_runtime.kv.formats import KVFormat
    from ninfer_runtime.kv.state import ModelState
    from ninfer_runtime.models.parameter_source import ParameterSource
    from ninfer_runtime.models.step import Step
    from ninfer_runtime.weights.store import WeightStore

ComponentConfigs = Mapping[str, Mapping[str, Any]]
"""The `config` object of each component of an artifact, by component id."""


@dataclass(frozen=True, slots=True)
class LogicalParameter:
    """One parameter of a model under the name that artifacts bind it by.

    Attributes:
        name: Full logical name, for example ``text/layers/3/attention/query``.
        shape: Logical shape; matrices are ``[N, K]`` = output rows by input columns.
        inputs: Names of the mathematical inputs that the parameter is multiplied with. A parameter
            with at least one input is a projection, and only projections may be quantized by
            activation-aware formats.
        storage_format: Direct format in which the parameter is stored unless a recipe says
            otherwise.
    """

    name: str
    shape: tuple[int, ...]
    inputs: tuple[str, ...] = ()
    storage_format: Literal["bf16", "fp32", "int32"] = "bf16"

    @property
    def is_projection(self) -> bool:
        """Whether an activation is multiplied with this parameter."""
        return bool(self.inputs)

    @property
    def residency(self) -> str:
        """The first component of the name: what is loaded together with this parameter."""
        return self.name.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class SourceView:
    """Where a logical parameter lies in a Hugging Face checkpoint.

    Attributes:
        tensor: Name of the tensor.
        tensor_shape: The shape that the tensor must have.
        rows: Half-open row ranges of the tensor seen as a matrix of its last axis, or ranges of
            elements of a vector, concatenated in order; None means all rows.
        axes: Permutation of the tensor's axes, applied before it is reshaped to the parameter's
            shape; None means none. Used for small tensors only.
    """

    tensor: str
    tensor_shape: tuple[int, ...]
    rows: tuple[tuple[int, int], ...] | None = None
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a text model will take on a device, known before it is loaded.

    Attributes:
        weight_bytes: Loaded weights.
        loading_bytes: The most that the weights take while they are loaded.
        cache_bytes: Pages for the keys and values of one sequence.
        recurrent_bytes: State of one sequence that does not grow with its length.
    """

    weight_bytes: int
    loading_bytes: int
    cache_bytes: int
    recurrent_bytes: int


class LanguageModel(Protocol):
    """A loaded text model."""

    @property
    def device(self) -> Device:
        """Where it lies and is executed."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the output head, V."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence in tokens that the model was made for."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes that the loaded weights take on the device."""
        ...

    def state_bytes(self, *, num_pages: int, num_slots: int, ring: int, kv_format: KVFormat) -> int:
        """Bytes of what `new_state` makes; nothing is allocated."""
        ...

    def new_state(
        self, *, num_pages: int, num_slots: int, ring: int, kv_format: KVFormat
    ) -> ModelState:
        """Make memory for the states of many sequences.

        Args:
            num_pages: Pages of `ninfer_runtime.kv.pages.PAGE_TOKENS` tokens in each attention layer.
            num_slots: States in each recurrent layer.
            ring: Records of a slot; more than the convolutions reach back, and as many as new tokens
                that are not committed at once besides.
            kv_format: How keys and values are stored.

        Raises:
            UnsupportedOpError: The device cannot store this model's keys and values so.
        """
        ...

    def forward(self, step: Step, state: ModelState) -> Tensor:
        """Execute new tokens of some sequences and advance their states; nothing is waited for.

        What a sequence gets depends on no other one, nor, but for the rounding of sums, on how it
        was cut into steps.

        Args:
            step: The tokens and where their states lie. A caller checks before that ids and places
                exist: what does not is undefined.
            state: From `new_state`.

        Returns:
            Hidden rows [B·C, D] after the final norm, of the device's activation dtype, ready for
            `logits`. A row whose column its sequence does not have is undefined.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Multiply hidden rows [T, D] with the output head: fp32 [T, V] on the device."""
        ...


class TextLayer(Protocol):
    """One layer of a text model, alone."""

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Execute the hidden rows of a whole sequence, float32 [T, D]; returns those after it."""
        ...


class LayeredText(Protocol):
    """A text model of which one layer is loaded at a time."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, V."""
        ...

    def embed(self, token_ids: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Hidden rows [T, D] before the first layer, for each sequence of tokens [T]."""
        ...

    def load_layer(self, index: int, observe: ObserveInput) -> TextLayer:
        """Load one layer.

        Args:
            index: Its number.
            observe: Is shown every input of every projection.
        """
        ...

    def observe_head(self, rows: np.ndarray, observe: ObserveInput) -> None:
        """Show what the output head gets from the rows [T, D] after the last layer."""
        ...


ObserveInput = Callable[[str, "Tensor"], None]
"""Looks at the input of a projection: its logical name and its rows [T, K]."""


Advance = Callable[[int, str], None]
"""Counts what has been loaded, in bytes, and names it."""


class Architecture(Protocol):
    """One family of models: its configuration, parameters, sources and mathematics."""

    @property
    def checkpoint_architectures(self) -> tuple[str, ...]:
        """Names in a checkpoint's ``architectures`` that this family converts."""
        ...

    @property
    def companions(self) -> tuple[str, ...]:
        """Components whose configuration and weights are in checkpoints of their own."""
        ...

    def component_configs(
        self,
        checkpoint_config: Mapping[str, Any],
        components: Sequence[str],
        companions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Normalise a checkpoint's ``config.json`` to the artifact's component configs.

        Args:
            checkpoint_config: The parsed ``config.json``.
            components: The selected components.
            companions: The parsed ``config.json`` of those that have checkpoints of their own.

        Raises:
            UnsupportedConfigError: A value would change the mathematics, or a component is not
                one of this family.
        """
        ...

    def parameters(self, configs: ComponentConfigs) -> tuple[LogicalParameter, ...]:
        """All logical parameters of the components in `configs`, in canonical order."""
        ...

    def packing_groups(self, configs: ComponentConfigs) -> tuple[tuple[str, ...], ...]:
        """Parameter names that may share one parent object, widest groups first."""
        ...

    def source_views(
        self, configs: ComponentConfigs, tensor_names: Collection[str]
    ) -> dict[str, SourceView]:
        """Where each logical parameter lies in a checkpoint that has `tensor_names`.

        A view may name a tensor that is absent; the converter lists those together.
        """
        ...

    def tensor_component(self, tensor_name: str) -> str:
        """The component that a checkpoint's tensor belongs to; ``text`` if to no other."""
        ...

    def resource_roles(self, component: str) -> tuple[str, ...]:
        """Files beside the weights that the component needs, for example ``tokenizer.json``."""
        ...

    def memory(
        self, artifact: Artifact, device: Device, capacity: int, kv_format: KVFormat
    ) -> ModelMemory:
        """What `load` will take, and one sequence of `capacity` tokens; no weight is read.

        Raises the same errors as `load` and as `LanguageModel.new_state`.
        """
        ...

    def layered(
        self, configs: ComponentConfigs, source: ParameterSource, device: Device
    ) -> LayeredText:
        """The text model of which one layer is loaded at a time.

        Raises:
            UnsupportedConfigError: The configuration is not one of this family.
        """
        ...

    def build(self, configs: ComponentConfigs, store: WeightStore) -> LanguageModel:
        """Build the text model of the weights in a store, on its device.

        Raises:
            UnsupportedConfigError: The configuration is not one of the family.
            CapacityError: The weights do not fit into the free memory of the device.
        """
        ...

    def load(self, artifact: Artifact, device: Device, advance: Advance) -> LanguageModel:
        """Bind the parameters of `artifact` and build the text model on `device`.

        Args:
            artifact: The artifact.
            device: Where the model shall lie.
            advance: Called with bytes and a name for each weight that is loaded.

        Raises:
            ArtifactError: A parameter is not bound or has another size.
            UnsupportedConfigError: The artifact's configuration is not one of this family.
        """
        ...
