"""The proposal head: which tokens it has, and where its rows come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import TensorRecord, open_artifact
from ninfer_format.errors import ExitCode, UsageError
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import Conversion, ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_quant.recipes.proposal import ProposalRequest, choose_tokens

V = 4096
Plan = Callable[..., Conversion]


@pytest.fixture
def plan(checkpoint: Path) -> Plan:
    def run(proposal: ProposalRequest, recipe: str = "qwen3_8_27b", **options: Any) -> Conversion:
        request = ConversionRequest(
            model=checkpoint,
            recipe=load_recipe(recipe),
            components=("text", "mtp"),
            proposal=proposal,
            **options,
        )
        return plan_conversion(request)

    return run


def write_counts(path: Path, *rows: np.ndarray) -> Path:
    path.write_bytes(np.stack(rows).astype("<i8").tobytes())
    return path


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.sets(st.integers(0, 60)),
    st.integers(1, 40),
)
def test_the_chosen_tokens_are_the_most_frequent_and_all_special_ones(
    counts: list[int], special: set[int], rows: int
):
    rows = min(rows, len(counts))
    ids = choose_tokens(np.array(counts), tuple(sorted(special)), rows).tolist()
    assert len(ids) == len(set(ids)) == rows
    found = [counts[token] for token in ids]
    assert found == sorted(found, reverse=True)
    forced = {token for token in special if token < len(counts)}
    assert forced <= set(ids) or set(ids) <= forced
    others = [token for token in range(len(counts)) if token not in forced]
    best = sorted(others, key=lambda token: (-counts[token], token))
    taken = [token for token in ids if token not in forced]
    assert taken == best[: len(taken)]


def test_equal_counts_put_special_tokens_last():
    counts = np.array([5, 5, 9, 5, 0])
    assert choose_tokens(counts, (0,), 4).tolist() == [2, 1, 3, 0]
    assert choose_tokens(counts, (0, 3, 4), 2).tolist() == [0, 3]


def test_a_ranking_orders_ids_and_rows(plan: Plan, tmp_path: Path, direct: Path):
    totals = np.arange(V)[::-1] % 1000
    ranking = write_counts(tmp_path / "counts.bin", totals, np.full(V, -1))
    conversion = plan(ProposalRequest(256, ranking), "qwen3_8_27b_bf16")
    path = tmp_path / "tiny.ninfer"
    run_conversion(conversion, RunOptions(path, verify="full"), lambda num_bytes, item: None)
    with open_artifact(path) as artifact, open_artifact(direct) as reference:
        proposal = artifact.directory.components["text"].proposal
        assert proposal is not None
        assert proposal.to_json() == {"domain": "indexed", "rows": 256}
        ids = artifact.decode_parameter("proposal/token_ids")
        special = conversion.model.special_token_ids
        assert set(special) <= set(ids.tolist())
        expected = choose_tokens(totals[: conversion.model.token_count], special, 256)
        np.testing.assert_array_equal(ids, expected)
        head = reference.decode_parameter("text/output_head", (V, 256))[ids]
        rows = artifact.decode_parameter("proposal/head", (256, 256))
        groups = np.abs(head).reshape(256, 4, 64).max(axis=2, keepdims=True) / 7
        assert (np.abs(rows - head).reshape(256, 4, 64) <= groups * 0.51).all()
        record = artifact.record(artifact.parts("proposal/head")[0].object)
        assert isinstance(record, TensorRecord)
        assert record.format == "q4_g64_fp16"
        uses = {use.input for use in artifact.directory.uses if use.parameter == "proposal/head"}
        assert uses == {"mtp/final_hidden"}
        assert artifact.directory.provenance["proposal"]["rows"] == 256


def test_all_tokens_need_no_ranking(plan: Plan):
    token_count = token_count_of(plan)
    conversion = plan(ProposalRequest(token_count))
    (ids,) = (
        part.source.read_values(0, part.source.num_elements)
        for weight in conversion.preparation.weights
        for part in weight.request.inputs
        if part.parameter == "proposal/token_ids"
    )
    np.testing.assert_array_equal(ids, np.arange(token_count))


def token_count_of(plan: Plan) -> int:
    with pytest.raises(UsageError) as caught:
        plan(ProposalRequest(V + 1))
    assert caught.value.hint is not None
    return int(caught.value.hint.rsplit(" ", 1)[1])


@pytest.mark.parametrize("size", [0, 8 * V - 8, 8 * V + 1])
def test_what_is_no_ranking_is_refused(plan: Plan, tmp_path: Path, size: int):
    path = tmp_path / "counts.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(UsageError, match="expected a multiple of 32768") as caught:
        plan(ProposalRequest(16, path))
    assert caught.value.exit_code == ExitCode.USAGE


def test_few_rows_need_a_ranking_that_exists(plan: Plan, tmp_path: Path):
    with pytest.raises(UsageError, match="needs a ranking"):
        plan(ProposalRequest(16))
    with pytest.raises(UsageError, match="no such ranking file"):
        plan(ProposalRequest(16, tmp_path / "none"))
    with pytest.raises(UsageError, match="counts below zero"):
        plan(ProposalRequest(16, write_counts(tmp_path / "negative", -np.ones(V))))


def test_an_output_head_of_several_sources_is_refused(plan: Plan, tmp_path: Path):
    override = tmp_path / "split.py"
    override.write_text(
        "import numpy as np\n"
        "from ninfer_quant.sources.logical import ArraySource\n"
        "def configure(model, recipe, sources):\n"
        "    head = ArraySource(np.zeros((4096, 256), np.float32))\n"
        "    recipe.assign('text/output_head', rows=(0, 10), source=head)\n"
    )
    ranking = write_counts(tmp_path / "counts.bin", np.ones(V))
    with pytest.raises(RecipeError, match="several sources"):
        plan(ProposalRequest(16, ranking), str(override))


REPLACED_HEAD = """
import numpy as np
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.logical import ArraySource

class Words(EncodedSource):
    def _read(self, begin, end):
        raise AssertionError("planning reads no words")

class Head(ArraySource):
    encoded = {encoded}

def configure(model, recipe, sources):
    rows = np.repeat(np.arange(4096, dtype=np.float32), 256).reshape(4096, 256)
    recipe.assign("text/output_head", source=Head(rows), format="{format}", method="{method}")
"""

WORD_FORMAT = "fp8_e4m3fn_row_bf16"
WORDS = f"Words('{WORD_FORMAT}', (4096, 256), 'words')"


@pytest.mark.parametrize("encoded", ["None", WORDS])
def test_a_head_that_the_recipe_replaced_gives_the_rows(plan: Plan, tmp_path: Path, encoded: str):
    """Even where its values come from words, as those of a GGUF file do, but are encoded anew."""
    ids, rows = proposal_of(plan, tmp_path, encoded, "cast_direct", "bf16")
    np.testing.assert_array_equal(rows[:, 0], ids)


def test_a_head_whose_words_are_imported_leaves_the_rows_to_the_model(
    plan: Plan, tmp_path: Path, direct: Path
):
    ids, rows = proposal_of(plan, tmp_path, WORDS, "import_encoded", WORD_FORMAT)
    with open_artifact(direct) as reference:
        head = reference.decode_parameter("text/output_head", (V, 256))
    np.testing.assert_array_equal(rows, head[ids])


def proposal_of(
    plan: Plan, tmp_path: Path, encoded: str, method: str, format: str
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and rows of a proposal head of 16 tokens, where the output head is `REPLACED_HEAD`."""
    recipe = tmp_path / "replaced.py"
    recipe.write_text(REPLACED_HEAD.format(encoded=encoded, method=method, format=format))
    ranking = write_counts(tmp_path / "counts.bin", np.arange(V))
    conversion = plan(ProposalRequest(16, ranking), str(recipe))
    sources = {
        part.parameter: part.source
        for weight in conversion.preparation.weights
        for part in weight.request.inputs
    }
    ids = sources["proposal/token_ids"].read_values(0, 16)
    return ids, sources["proposal/head"].read_values(0, 16 * 256).reshape(16, 256)
