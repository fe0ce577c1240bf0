"""The logical parameters of a mixture of experts, and where checkpoints keep them.

Letters of the shapes: D hidden size. Matrices are [output rows, input columns].
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ninfer_runtime.models.architecture import LogicalParameter, SourceView
from ninfer_runtime.models.qwen3_5.config import MoeConfig


def expert_prefix(block: str, expert: int) -> str:
    """Prefix of the parameter names of one expert of a layer."""
    return f"{block}moe/experts/{expert}/"


def moe_parameters(moe: MoeConfig, D: int, block: str) -> Iterator[LogicalParameter]:
    """All parameters of the mixture of a layer, in canonical order."""
    ffn_input = (f"{block}ffn_input",)
    yield LogicalParameter(f"{block}moe/router", (moe.num_experts, D), ffn_input)
    yield LogicalParameter(f"{block}moe/shared_score", (1, D), ffn_input)
    for expert in range(moe.num_experts):
        prefix = expert_prefix(block, expert)
        yield from _expert(prefix, moe.moe_intermediate_size, D, ffn_input)
    shared = f"{block}moe/shared/"
    yield from _expert(shared, moe.shared_expert_intermediate_size, D, ffn_input)


def _expert(
    prefix: str, inner: int, D: int, ffn_input: tuple[str, ...]
) -> Iterator[LogicalParameter]:
    yield LogicalParameter(f"{prefix}gate", (inner, D), ffn_input)
    yield LogicalParameter(f"{prefix}up", (inner, D), ffn_input)
    yield LogicalParameter(f"{prefix}down", (D, inner), (f"{prefix}product",))


def moe_packing_groups(moe: MoeConfig, block: str) -> Iterator[tuple[str, ...]]:
    """Names that may share one parent object, in row order: the experts form banks."""
    experts = [expert_prefix(block, expert) for expert in range(moe.num_experts)]
    yield f"{block}moe/router", f"{block}moe/shared_score"
    yield tuple(f"{expert}{role}" for expert in experts for role in ("gate", "up"))
    yield tuple(f"{expert}down" for expert in experts)
    yield f"{block}moe/shared/gate", f"{block}moe/shared/up"


def moe_views(
    moe: MoeConfig, D: int, block: str, prefix: str, tensor_names: Collection[str]
) -> Iterator[tuple[str, SourceView]]:
    """The views of a layer.

    Experts are fused to two tensors, or have three each.

    Args:
        moe: The geometry.
        D: Hidden size.
        block: Prefix of the parameters.
        prefix: Prefix of the layer's tensors.
        tensor_names: Tensors of the checkpoint; they decide which of the two it is.
    """
    mlp = f"{prefix}mlp."
    yield f"{block}moe/router", SourceView(f"{mlp}gate.weight", (moe.num_experts, D))
    yield f"{block}moe/shared_score", SourceView(f"{mlp}shared_expert_gate.weight", (1, D))
    is_fused = not any(
        f"{mlp}experts.{expert}.{role}_proj.weight" in tensor_names
        for expert in range(moe.num_experts)
        for role in ("gate", "up", "down")
    )
    for expert in range(moe.num_experts):
        logical = expert_prefix(block, expert)
        if is_fused:
            yield from _fused_views(moe, D, logical, f"{mlp}experts.", expert)
        else:
            tensors = f"{mlp}experts.{expert}."
            yield from _expert_views(logical, tensors, moe.moe_intermediate_size, D)
    shared = f"{mlp}shared_expert."
    inner = moe.shared_expert_intermediate_size
    yield from _expert_views(f"{block}moe/shared/", shared, inner, D)


def _expert_views(
    logical: str, prefix: str, inner: int, D: int
) -> Iterator[tuple[str, SourceView]]:
    yield f"{logical}gate", SourceView(f"{prefix}gate_proj.weight", (inner, D))
    yield f"{logical}up", SourceView(f"{prefix}up_proj.weight", (inner, D))
    yield f"{logical}down", SourceView(f"{prefix}down_proj.weight", (D, inner))


def _fused_views(
    moe: MoeConfig, D: int, logical: str, prefix: str, expert: int
) -> Iterator[tuple[str, SourceView]]:
    E, inner = moe.num_experts, moe.moe_intermediate_size
    for index, role in enumerate(("gate", "up")):
        first = (2 * expert + index) * inner
        rows = ((first, first + inner),)
        yield f"{logical}{role}", SourceView(f"{prefix}gate_up_proj", (E, 2 * inner, D), rows)
    rows = ((expert * D, (expert + 1) * D),)
    yield f"{logical}down", SourceView(f"{prefix}down_proj", (E, D, inner), rows)
