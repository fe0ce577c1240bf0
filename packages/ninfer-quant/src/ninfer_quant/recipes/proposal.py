"""The proposal head: the output head's rows of the tokens that drafts are most likely made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format import Proposal
from ninfer_format.errors import UsageError
from ninfer_quant.errors import RecipeError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.recipes.selection import IMPORT_ENCODED
from ninfer_quant.sources.logical import ArraySource, LogicalSource, select_rows
from ninfer_quant.sources.store import AbsentSource

DRAFTERS = ("mtp", "dflash", "dflash2")
"""Components that use the head."""

HEAD = "proposal/head"
IDS = "proposal/token_ids"
OUTPUT_HEAD = "text/output_head"
FORMAT, METHOD = "q4_g64_fp16", "grouped_absmax"
_COUNT_BYTES = 8


@dataclass(frozen=True)
class ProposalRequest:
    """What the user asks for.

    Attributes:
        rows: Number of tokens.
        ranking: How often each token was counted: little-endian int64 rows of V counts, of which
            the first holds the totals. Without it the head has every token.
    """

    rows: int
    ranking: Path | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """What is the same on every machine."""
        ranking = {} if self.ranking is None else {"ranking_sha256": self._digest}
        return {"rows": self.rows} | ranking

    @cached_property
    def _digest(self) -> str:
        return sha256(_read_ranking(self.ranking)).hexdigest() if self.ranking else ""


def add_proposal(model: Model, recipe: Recipe, request: ProposalRequest) -> None:
    """Add the parameters of the head to the model and to a recipe that has run.

    Raises:
        RecipeError: There is such a head already, or the output head comes from several sources.
        UsageError: The number of rows is out of range, or the ranking is missing or no ranking.
    """
    text = model.components["text"]
    if text.proposal is not None or HEAD in model.parameters:
        raise RecipeError("a proposal head is configured already")
    if not 1 <= request.rows <= model.token_count:
        raise UsageError(
            f"--proposal-rows {request.rows}: the tokenizer has {model.token_count} tokens",
            hint=f"give 1 to {model.token_count}",
        )
    head = _head_source(model, recipe)
    ids = _token_ids(model, request, head.shape[0])
    rows = _gathered(head, ids)
    inputs = tuple(f"{name}/final_hidden" for name in DRAFTERS if name in model.components)
    model.add(Parameter(HEAD, rows.shape, rows, inputs))
    model.add(Parameter(IDS, ids.shape, ArraySource(ids, IDS), (), "int32"))
    proposal = Proposal("indexed", request.rows)
    model.components["text"] = replace(text, proposal=proposal)
    for name in (HEAD, IDS):
        recipe.add_parameter(name)
    recipe.assign(HEAD, format=FORMAT, method=METHOD)


def choose_tokens(counts: np.ndarray, special: tuple[int, ...], rows: int) -> np.ndarray:
    """Choose the most frequent tokens, all special ones among them.

    Args:
        counts: How often each token was counted, int64 ``[tokens]``.
        special: Ids of the special tokens.
        rows: How many to choose.

    Returns:
        Ids by descending count, equal counts by ascending id but special tokens last:
        int32 ``[rows]``.
    """
    by_count = np.argsort(-counts, kind="stable")
    forced = np.array([token for token in special if token < counts.size], np.int64)
    is_forced = np.isin(by_count, forced)
    if forced.size >= rows:
        chosen = by_count[is_forced][:rows]
    else:
        chosen = np.concatenate([by_count[~is_forced][: rows - forced.size], np.sort(forced)])
        chosen = chosen[np.argsort(-counts[chosen], kind="stable")]
    return chosen.astype(np.int32)


def _head_source(model: Model, recipe: Recipe) -> LogicalSource:
    """The head that the recipe encodes; if it imports words, the floats that the model has."""
    name = OUTPUT_HEAD
    base = model.parameters[name].source
    while name in recipe.aliases:
        name = recipe.aliases[name]
    selections = recipe.selections[name]
    sources = [selection.source for selection in selections]
    if any(source is not sources[0] for source in sources):
        raise RecipeError(
            "comes from several sources, so that the proposal head has none", parameters=(name,)
        )
    imported = any(selection.encoding.method == IMPORT_ENCODED for selection in selections)
    if imported and not isinstance(base, AbsentSource):
        return base
    return sources[0]


def _gathered(head: LogicalSource, ids: np.ndarray) -> LogicalSource:
    if isinstance(head, AbsentSource):
        shape = (ids.size, *head.shape[1:])
        return AbsentSource(shape, head.tensors, head.path, is_planned=head.is_planned)
    return select_rows(head, [(int(token), int(token) + 1) for token in ids])


def _token_ids(model: Model, request: ProposalRequest, vocab_size: int) -> np.ndarray:
    if request.ranking is not None:
        totals = _totals(request.ranking, vocab_size)[: model.token_count]
        return choose_tokens(totals, model.special_token_ids, request.rows)
    if request.rows != model.token_count:
        raise UsageError(
            f"--proposal-rows {request.rows} of {model.token_count} tokens needs a ranking",
            hint="give --ranking FILE, or --proposal-rows with the number of all tokens",
        )
    return np.arange(request.rows, dtype=np.int32)


def _totals(ranking: Path, vocab_size: int) -> np.ndarray:
    data = _read_ranking(ranking)
    row = _COUNT_BYTES * vocab_size
    if not data or len(data) % row:
        raise UsageError(
            f"the ranking has {len(data)} bytes, expected a multiple of {row}: rows of "
            f"{vocab_size} int64 counts",
            path=ranking,
        )
    totals = np.frombuffer(data, "<i8", vocab_size)
    if totals.min() < 0:
        raise UsageError("the ranking has counts below zero", path=ranking)
    return totals


def _read_ranking(path: Path) -> bytes:
    if not path.is_file():
        raise UsageError("no such ranking file", path=path)
    return path.read_bytes()
