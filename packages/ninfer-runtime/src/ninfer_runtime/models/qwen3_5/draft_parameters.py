"""The logical parameters of DFlash and DFlash2, and where their checkpoints keep them.

Letters of the shapes: V vocabulary, D hidden size of the text. Matrices are
[output rows, input columns].
"""

from __future__ import annotations

from collections.abc import Iterator

from ninfer_runtime.models.architecture import LogicalParameter, SourceView
from ninfer_runtime.models.qwen3_5.config import TextConfig
from ninfer_runtime.models.qwen3_5.draft_config import DraftConfig

BRANCHES = ("attention_conv", "mlp_conv")
SIDES = 2
"""A branch is convolved before and after its projection."""


def draft_block(component: str, layer: int) -> str:
    """Prefix of the parameter names of one layer."""
    return f"{component}/layers/{layer}/"


def draft_parameters(draft: DraftConfig, text: TextConfig) -> Iterator[LogicalParameter]:
    """All parameters of a drafter, in canonical order."""
    name, D = draft.component, text.hidden_size
    taps = (D, len(draft.target_layer_ids) * D)
    yield LogicalParameter(f"{name}/feature_projection", taps, (f"{name}/target_features",))
    yield LogicalParameter(f"{name}/context_norm", (D,))
    yield LogicalParameter(f"{name}/final_norm", (D,))
    for layer in range(draft.num_hidden_layers):
        yield from _block_parameters(draft, D, layer)
    if draft.selector_rank is not None:
        rank, selector = draft.selector_rank, f"{name}/candidate_selector/"
        hidden = (f"{name}/final_hidden",)
        yield LogicalParameter(f"{selector}hidden_projection", (rank, D), hidden)
        yield LogicalParameter(f"{selector}predecessor_codebook", (text.vocab_size, rank))
        yield LogicalParameter(f"{selector}successor_codebook", (text.vocab_size, rank))


def _block_parameters(draft: DraftConfig, D: int, layer: int) -> Iterator[LogicalParameter]:
    block = draft_block(draft.component, layer)
    attention, mlp = f"{block}attention/", f"{block}mlp/"
    query, key = (draft.query_width, D), (draft.key_width, D)
    projected = (f"{block}query_projection_input",)
    context = (f"{draft.component}/context_input",)
    yield LogicalParameter(f"{block}input_norm", (D,))
    yield LogicalParameter(f"{block}post_attention_norm", (D,))
    yield LogicalParameter(f"{attention}query", query, projected)
    yield LogicalParameter(f"{attention}key", key, projected)
    yield LogicalParameter(f"{attention}value", key, projected)
    yield LogicalParameter(f"{attention}context_key", key, context)
    yield LogicalParameter(f"{attention}context_value", key, context)
    yield LogicalParameter(f"{attention}query_norm", (draft.head_dim,))
    yield LogicalParameter(f"{attention}key_norm", (draft.head_dim,))
    output = (f"{block}attention_output",)
    yield LogicalParameter(f"{attention}output", (D, draft.query_width), output)
    for role in ("gate", "up"):
        shape = (draft.intermediate_size, D)
        yield LogicalParameter(f"{mlp}{role}", shape, (f"{block}mlp_input",))
    down = (D, draft.intermediate_size)
    yield LogicalParameter(f"{mlp}down", down, (f"{block}mlp_product",))
    for branch, kernel, projection in _convolutions(draft, D):
        yield LogicalParameter(f"{block}{branch}/base_kernel", kernel)
        branch_input = (f"{block}{branch}_input",)
        yield LogicalParameter(f"{block}{branch}/kernel_projection", projection, branch_input)


def _convolutions(
    draft: DraftConfig, D: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Branches with the shapes of base kernel and kernel projection; none for DFlash."""
    taps, group = draft.conv_kernel_size, draft.conv_group_size
    if taps is None or group is None:
        return
    for branch in BRANCHES:
        yield branch, (SIDES, taps, D), (SIDES * taps * D // group, D)


def draft_packing_groups(draft: DraftConfig) -> Iterator[tuple[str, ...]]:
    """Names that may share one parent object, in row order."""
    for layer in range(draft.num_hidden_layers):
        block = draft_block(draft.component, layer)
        yield tuple(f"{block}attention/{role}" for role in ("query", "key", "value"))
        yield f"{block}mlp/gate", f"{block}mlp/up"


def draft_views(draft: DraftConfig, text: TextConfig) -> Iterator[tuple[str, SourceView]]:
    """The view of each parameter in the drafter's own checkpoint."""
    tensors = dict(_roots(draft)) | {
        f"{draft_block(draft.component, layer)}{role}": f"layers.{layer}.{tensor}"
        for layer in range(draft.num_hidden_layers)
        for role, tensor in _BLOCK_TENSORS.items()
    }
    for parameter in draft_parameters(draft, text):
        yield parameter.name, SourceView(tensors[parameter.name], parameter.shape)


def _roots(draft: DraftConfig) -> Iterator[tuple[str, str]]:
    name = draft.component
    yield f"{name}/feature_projection", "fc.weight"
    yield f"{name}/context_norm", "hidden_norm.weight"
    yield f"{name}/final_norm", "norm.weight"
    selector = "candidate_selector"
    yield f"{name}/{selector}/hidden_projection", f"{selector}.hidden_projection.weight"
    for role in ("predecessor_codebook", "successor_codebook"):
        yield f"{name}/{selector}/{role}", f"{selector}.{role}"


_BLOCK_TENSORS = {
    "input_norm": "input_layernorm.weight",
    "post_attention_norm": "post_attention_layernorm.weight",
    "attention/query": "self_attn.q_proj.weight",
    "attention/key": "self_attn.k_proj.weight",
    "attention/value": "self_attn.v_proj.weight",
    # Context rows are projected by the same matrices, but for another input.
    "attention/context_key": "self_attn.k_proj.weight",
    "attention/context_value": "self_attn.v_proj.weight",
    "attention/query_norm": "self_attn.q_norm.weight",
    "attention/key_norm": "self_attn.k_norm.weight",
    "attention/output": "self_attn.o_proj.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
    "attention_conv/base_kernel": "attention_conv.base_kernel",
    "attention_conv/kernel_projection": "attention_conv.kernel_projection.weight",
    "mlp_conv/base_kernel": "mlp_conv.base_kernel",
    "mlp_conv/kernel_projection": "mlp_conv.kernel_projection.weight",
}
