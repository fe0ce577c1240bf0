"""Configuration of the block drafters DFlash and DFlash2, which have checkpoints of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_runtime.models.config_reader import ConfigReader
from ninfer_runtime.models.qwen3_5.config import TextConfig

DFLASH, DFLASH2 = "dflash", "dflash2"
ARCHITECTURES = {DFLASH: "DFlashDraftModel", DFLASH2: "DFlash2DraftModel"}
"""Name in ``architectures`` by component."""

MODEL_TYPE = "qwen3"
SLIDING_ATTENTION = "sliding_attention"
FULL_ATTENTION = "full_attention"

SIZES = (
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "max_position_embeddings",
)
SELECTOR_SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_DEFAULT_THETA = 1e7
_DEFAULT_MAX_WINDOW_LAYERS = 28


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Geometry of a drafter; its hidden size and vocabulary are the text's.

    The last four are None without convolution and candidate selector, that is for DFlash.
    """

    component: str
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    layer_types: tuple[str, ...]
    sliding_window: int | None
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    conv_kernel_size: int | None = None
    conv_group_size: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None

    @property
    def query_width(self) -> int:
        """H · HD."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """KH · HD, also the width of the values."""
        return self.num_key_value_heads * self.head_dim


def parse_draft(
    config: Mapping[str, Any], component: str, text: TextConfig, *, scope: str | None = None
) -> DraftConfig:
    """Parse the `config` of component ``dflash`` or ``dflash2`` of an artifact.

    Args:
        config: The JSON object.
        component: Which of the two.
        text: The model that drafts are made for.
        scope: Where the object stands, for errors.

    Raises:
        UnsupportedConfigError: A member is missing, unknown, of another type or outside its domain.
    """
    reader = ConfigReader(config, component if scope is None else scope)
    reader.constant("architectures", [ARCHITECTURES[component]])
    reader.constant("model_type", MODEL_TYPE)
    sizes: dict[str, Any] = {name: reader.integer(name) for name in SIZES}
    if sizes["num_attention_heads"] % sizes["num_key_value_heads"]:
        raise reader.refuse("num_key_value_heads", "a divisor of num_attention_heads")
    if sizes["head_dim"] % 2:
        raise reader.refuse("head_dim", "an even number")
    layer_types = reader.choices(
        "layer_types", sizes["num_hidden_layers"], (SLIDING_ATTENTION, FULL_ATTENTION)
    )
    known = ["architectures", "model_type", "rms_norm_eps", "rope_parameters", "layer_types"]
    known += [*SIZES, "dflash_config"]
    sliding_window = None
    if SLIDING_ATTENTION in layer_types:
        sliding_window = reader.integer("sliding_window")
        known.append("sliding_window")
    reader.refuse_other_members(known)
    rope = reader.section("rope_parameters")
    rope.refuse_other_members(("rope_theta",))
    return DraftConfig(
        component,
        **sizes,
        rms_norm_eps=reader.real("rms_norm_eps"),
        rope_theta=rope.real("rope_theta"),
        layer_types=layer_types,
        sliding_window=sliding_window,
        **_parse_taps(reader.section("dflash_config"), component, text),
    )


def _parse_taps(reader: ConfigReader, component: str, text: TextConfig) -> dict[str, Any]:
    known = ["target_layer_ids", "mask_token_id"]
    selector: dict[str, int] = {}
    if component == DFLASH2:
        selector = {name: reader.integer(name) for name in SELECTOR_SIZES}
        known += SELECTOR_SIZES
        if text.hidden_size % selector["conv_group_size"]:
            raise reader.refuse("conv_group_size", f"a divisor of {text.hidden_size}")
        if selector["selector_top_k"] > text.vocab_size:
            raise reader.refuse("selector_top_k", f"at most {text.vocab_size}")
    reader.refuse_other_members(known)
    ids = reader.values.get("target_layer_ids")
    count = len(ids) if isinstance(ids, list | tuple) else 0
    layers = reader.integers("target_layer_ids", max(1, count), minimum=0)
    if len(set(layers)) < len(layers) or max(layers) >= text.num_hidden_layers:
        raise reader.refuse("target_layer_ids", f"different layers below {text.num_hidden_layers}")
    mask = reader.integer("mask_token_id", minimum=0)
    if mask >= text.vocab_size:
        raise reader.refuse("mask_token_id", f"a token below {text.vocab_size}")
    return {"target_layer_ids": layers, "mask_token_id": mask, **selector}


def normalise_draft(
    checkpoint_config: Mapping[str, Any], component: str, text: TextConfig
) -> dict[str, Any]:
    """Bring the ``config.json`` of a drafter's checkpoint to the form of an artifact.

    Args:
        checkpoint_config: The JSON object, without nulls.
        component: ``dflash`` or ``dflash2``.
        text: The model that drafts are made for.

    Raises:
        UnsupportedConfigError: A value would change the mathematics, or does not fit the text.
    """
    top = ConfigReader(checkpoint_config, component)
    top.constant("architectures", [ARCHITECTURES[component]])
    taps = top.section("dflash_config")
    _check_constants(top, taps, component, text)
    layer_types = _layer_types(top)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[component]],
        "model_type": MODEL_TYPE,
        **{name: top.integer(name) for name in SIZES},
        "rms_norm_eps": top.real("rms_norm_eps", 1e-6),
        "rope_parameters": {"rope_theta": _rope_theta(top)},
        "layer_types": layer_types,
        "dflash_config": _normalise_taps(top, taps, component),
    }
    if SLIDING_ATTENTION in layer_types:
        config["sliding_window"] = top.integer("sliding_window")
    parse_draft(config, component, text)
    return config


def _check_constants(
    top: ConfigReader, taps: ConfigReader, component: str, text: TextConfig
) -> None:
    top.constant_if_present("model_type", MODEL_TYPE)
    top.constant_if_present("hidden_act", "silu")
    top.constant_if_present("attention_bias", False)
    top.constant_if_present("is_causal", False)
    top.constant_if_present("hidden_size", text.hidden_size)
    top.constant_if_present("vocab_size", text.vocab_size)
    top.constant_if_present("num_target_layers", text.num_hidden_layers)
    for scope in (top, taps) if component == DFLASH2 else ():
        scope.constant_if_present("sample_from_anchor", False)
        scope.constant_if_present("input_embedding_scale", 1.0)
        scope.constant_if_present("output_multiplier", 1.0)
        scope.constant_if_present("final_logit_softcapping", 0)


def _layer_types(top: ConfigReader) -> list[str]:
    layers = top.integer("num_hidden_layers")
    if "layer_types" in top:
        return list(top.choices("layer_types", layers, (SLIDING_ATTENTION, FULL_ATTENTION)))
    if not top.boolean("use_sliding_window", False):
        return [FULL_ATTENTION] * layers
    first = top.integer("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS, minimum=0)
    return [SLIDING_ATTENTION if layer >= first else FULL_ATTENTION for layer in range(layers)]


def _rope_theta(top: ConfigReader) -> float:
    rope = top
    for spelling in ("rope_scaling", "rope_parameters"):
        if spelling not in top:
            continue
        rope = top.section(spelling)
        for name in ("type", "rope_type"):
            rope.constant_if_present(name, "default")
        rope.constant_if_present("factor", 1.0)
    return (rope if "rope_theta" in rope else top).real("rope_theta", _DEFAULT_THETA)


def _normalise_taps(top: ConfigReader, taps: ConfigReader, component: str) -> dict[str, Any]:
    ids = taps.values.get("target_layer_ids")
    if not isinstance(ids, list | tuple):
        raise taps.refuse("target_layer_ids", "a list of layers")
    config: dict[str, Any] = {
        "target_layer_ids": list(ids),
        "mask_token_id": (taps if "mask_token_id" in taps else top).integer(
            "mask_token_id", minimum=0
        ),
    }
    for name in SELECTOR_SIZES if component == DFLASH2 else ():
        config[name] = (taps if name in taps else top).integer(name)
    return config
