"""Which activations a parameter of a published model meets (specification, section 11.5)."""

from __future__ import annotations

import re
from collections.abc import Sequence

BACKENDS = ("mtp", "dflash", "dflash2")
"""Components that draft tokens and share the output head, in the order of their uses."""

_BLOCK = r"(?P<block>text/layers/\d+|mtp/layers/0)"
_VISION = r"(?P<layer>vision/layers/\d+)"
_DRAFT = r"(?P<draft>dflash2?)"
_DRAFT_LAYER = r"(?P<layer>dflash2?/layers/\d+)"
_DFLASH2_LAYER = r"(?P<layer>dflash2/layers/\d+)"

_TABLE = (
    (r"mtp/input_projection", r"mtp/stem_input"),
    (rf"{_BLOCK}/attention/(query|key|gate|value)", r"\g<block>/mixer_input"),
    (rf"{_BLOCK}/gdn/(query|key|value|z|a_projection|b_projection)", r"\g<block>/mixer_input"),
    (rf"{_BLOCK}/attention/output", r"\g<block>/attention/gated_output"),
    (rf"{_BLOCK}/gdn/output", r"\g<block>/gdn/gated_output"),
    (rf"{_BLOCK}/mlp/(gate|up)", r"\g<block>/ffn_input"),
    (rf"{_BLOCK}/moe/(router|shared_score)", r"\g<block>/ffn_input"),
    (rf"{_BLOCK}/moe/(experts/\d+|shared)/(gate|up)", r"\g<block>/ffn_input"),
    (rf"{_BLOCK}/mlp/down", r"\g<block>/mlp/product"),
    (
        rf"{_BLOCK}/moe/(?P<expert>experts/\d+|shared)/down",
        r"\g<block>/moe/\g<expert>/product",
    ),
    (r"vision/patch_embedding", r"vision/patch_input"),
    (r"vision/merger/fc1", r"vision/merger/input"),
    (r"vision/merger/fc2", r"vision/merger/activation"),
    (rf"{_VISION}/attention/(query|key|value)", r"\g<layer>/attention_input"),
    (rf"{_VISION}/attention/output", r"\g<layer>/attention_output"),
    (rf"{_VISION}/mlp/fc1", r"\g<layer>/mlp_input"),
    (rf"{_VISION}/mlp/fc2", r"\g<layer>/mlp_activation"),
    (rf"{_DRAFT}/feature_projection", r"\g<draft>/target_features"),
    (r"dflash2/candidate_selector/hidden_projection", r"dflash2/final_hidden"),
    (
        rf"{_DRAFT}/layers/\d+/attention/(context_key|context_value)",
        r"\g<draft>/context_input",
    ),
    (rf"{_DRAFT_LAYER}/attention/(query|key|value)", r"\g<layer>/query_projection_input"),
    (rf"{_DRAFT_LAYER}/attention/output", r"\g<layer>/attention_output"),
    (rf"{_DRAFT_LAYER}/mlp/(gate|up)", r"\g<layer>/mlp_input"),
    (rf"{_DRAFT_LAYER}/mlp/down", r"\g<layer>/mlp_product"),
    (
        rf"{_DFLASH2_LAYER}/(?P<branch>attention_conv|mlp_conv)/kernel_projection",
        r"\g<layer>/\g<branch>_input",
    ),
)
_INPUTS = [(re.compile(parameter), place) for parameter, place in _TABLE]


def parameter_inputs(parameter: str, backends: Sequence[str]) -> tuple[str, ...]:
    """The inputs that a parameter is used with; none for norms, biases and the like.

    Args:
        parameter: Full name of the parameter.
        backends: The components of `BACKENDS` that the model has.
    """
    drafts = tuple(f"{backend}/final_hidden" for backend in backends)
    if parameter == "text/output_head":
        return ("text/final_hidden", *drafts)
    if parameter == "proposal/head":
        return drafts
    for pattern, place in _INPUTS:
        match = pattern.fullmatch(parameter)
        if match is not None:
            return (match.expand(place),)
    return ()
