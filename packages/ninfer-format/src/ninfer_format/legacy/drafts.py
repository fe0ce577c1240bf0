"""Objects of the block drafters DFlash and DFlash2 (container specification, section 11.4).

Letters of the shapes: V vocabulary, D hidden size, Q and K rows of the attention's query and key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ninfer_format.container.schema import Binding, Part
from ninfer_format.legacy.geometry import DraftGeometry, SelectorGeometry, TextGeometry
from ninfer_format.legacy.object_rows import Block, ObjectRow


def draft_rows(component: str, draft: DraftGeometry, text: TextGeometry) -> Iterator[ObjectRow]:
    """Every object of a drafter.

    Args:
        component: ``dflash`` or ``dflash2``.
        draft: Its sizes.
        text: Sizes of the model that it drafts for.
    """
    D = text.hidden_size
    root = Block(f"{component}/", f"{component}/")
    yield root.same("feature_projection", D, len(draft.target_layer_ids) * D)
    yield root.same("context_norm", D)
    yield root.same("final_norm", D)
    if draft.selector is not None:
        yield from _selector_rows(draft.selector, text, root)
    for layer in range(len(draft.layer_types)):
        name = f"{component}/layers/{layer}/"
        yield from _layer_rows(draft, D, Block(name, name))


def _selector_rows(
    selector: SelectorGeometry, text: TextGeometry, root: Block
) -> Iterator[ObjectRow]:
    rank = selector.selector_rank
    yield root.same("candidate_selector/hidden_projection", rank, text.hidden_size)
    yield root.same("candidate_selector/predecessor_codebook", text.vocab_size, rank)
    yield root.same("candidate_selector/successor_codebook", text.vocab_size, rank)


def _layer_rows(draft: DraftGeometry, D: int, block: Block) -> Iterator[ObjectRow]:
    Q, inner = draft.query_rows, draft.intermediate_size
    yield block.same("input_norm", D)
    yield block.same("post_attention_norm", D)
    yield _query_key_value(draft, D, block)
    yield block.same("attention/query_norm", draft.head_dim)
    yield block.same("attention/key_norm", draft.head_dim)
    yield block.same("attention/output", D, Q)
    yield block.split("mlp/gate_up", {"mlp/gate": inner, "mlp/up": inner}, D)
    yield block.same("mlp/down", D, inner)
    if draft.selector is not None:
        yield from _convolution_rows(draft.selector, D, block)


def _query_key_value(draft: DraftGeometry, D: int, block: Block) -> ObjectRow:
    """Keys and values have a second name for their second role: what the target's features meet."""
    Q, K = draft.query_rows, draft.key_rows
    roles = {"attention/query": Q, "attention/key": K, "attention/value": K}
    row = block.split("attention/query_key_value", roles, D)
    context = {
        block.parameters + "attention/context_key": _rows(row, Q, Q + K),
        block.parameters + "attention/context_value": _rows(row, Q + K, Q + 2 * K),
    }
    return replace(row, bindings={**row.bindings, **context})


def _rows(row: ObjectRow, begin: int, end: int) -> Binding:
    width = row.shape[1]
    return Binding(parts=(Part(row.name, begin * width, end * width),))


def _convolution_rows(selector: SelectorGeometry, D: int, block: Block) -> Iterator[ObjectRow]:
    taps = selector.conv_kernel_size
    for branch in ("attention_conv", "mlp_conv"):
        yield block.same(f"{branch}/base_kernel", 2, taps, D)
        width = 2 * taps * D // selector.conv_group_size
        yield block.same(f"{branch}/kernel_projection", width, D)
