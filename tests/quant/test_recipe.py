from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ninfer_quant.errors import RecipeError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.recipes.selection import AuxiliaryValue
from ninfer_quant.sources.logical import ArraySource

SHAPES: dict[str, tuple[int, ...]] = {
    "text/a": (8, 64),
    "text/b": (8, 64),
    "text/B": (4, 64),
    "text/norm": (64,),
    "text/scalar": (),
    "vision/a": (8, 64),
}
INPUTS = {"text/a": ("in", "out"), "text/b": ("in",)}


@pytest.fixture
def recipe(fake_model: Callable[..., Model]) -> Recipe:
    return Recipe(fake_model(SHAPES, inputs=INPUTS, formats={"text/norm": "fp32"}))


def formats(recipe: Recipe) -> dict[str, str]:
    return {name: pieces[0].encoding.format for name, pieces in recipe.selections.items()}


def rows(recipe: Recipe, name: str) -> list[tuple[int, int] | None]:
    return [piece.rows for piece in recipe.selections[name]]


def test_everything_starts_direct_whole_and_a16(recipe: Recipe):
    assert formats(recipe) == {**dict.fromkeys(SHAPES, "bf16"), "text/norm": "fp32"}
    assert {piece.encoding.method for pieces in recipe.selections.values() for piece in pieces} == {
        "cast_direct"
    }
    assert rows(recipe, "text/a") == [(0, 8)]
    assert rows(recipe, "text/scalar") == [None]
    assert {key: use.activation_policy for key, use in recipe.uses.items()} == {
        ("text/a", "in"): "A16Only",
        ("text/a", "out"): "A16Only",
        ("text/b", "in"): "A16Only",
    }


# --- match ---------------------------------------------------------------------------------


def test_patterns_cross_slashes_and_keep_model_order(recipe: Recipe):
    assert recipe.match("*a") == ("text/a", "vision/a")
    assert recipe.match(["vision/*", "text/[ab]"]) == ("vision/a", "text/a", "text/b")


def test_patterns_are_case_sensitive(recipe: Recipe):
    assert recipe.match("text/b") == ("text/b",)
    assert recipe.match("*/[B]") == ("text/B",)


def test_names_are_listed_once(recipe: Recipe):
    assert recipe.match(["text/a", "text/*", "*a"])[:2] == ("text/a", "text/b")
    assert len(recipe.match(["*", "*"])) == len(SHAPES)


def test_an_exact_name_wins_over_its_reading_as_a_pattern(fake_model: Callable[..., Model]):
    recipe = Recipe(fake_model({"text/[ab]": (2,), "text/a": (2,)}))
    assert recipe.match("text/[ab]") == ("text/[ab]",)


@pytest.mark.parametrize("selectors", ["text/c", "TEXT/a", ["text/a", "nothing*"], []])
def test_a_selector_that_matches_nothing_fails(recipe: Recipe, selectors: str | list[str]):
    with pytest.raises(RecipeError, match="selector"):
        recipe.match(selectors)


# --- assign --------------------------------------------------------------------------------


def test_only_given_arguments_change(recipe: Recipe):
    recipe.assign("text/a", format="q4_g64_fp16")
    encoding = recipe.selections["text/a"][0].encoding
    assert (encoding.format, encoding.layout, encoding.method) == (
        "q4_g64_fp16",
        "auto",
        "cast_direct",
    )
    recipe.assign("text/a", method="grouped_absmax", layout="row_split_k128_v1")
    encoding = recipe.selections["text/a"][0].encoding
    assert (encoding.format, encoding.method) == ("q4_g64_fp16", "grouped_absmax")
    recipe.assign("text/a", layout="auto")
    assert recipe.selections["text/a"][0].encoding.layout == "auto"
    assert formats(recipe)["text/b"] == "bf16"


def test_rows_split_a_selection(recipe: Recipe):
    recipe.assign("text/a", rows=(2, 6), format="fp32")
    assert rows(recipe, "text/a") == [(0, 2), (2, 6), (6, 8)]
    assert [piece.encoding.format for piece in recipe.selections["text/a"]] == [
        "bf16",
        "fp32",
        "bf16",
    ]
    recipe.assign("text/a", rows=(1, 3), format="int32")
    assert rows(recipe, "text/a") == [(0, 1), (1, 2), (2, 3), (3, 6), (6, 8)]
    recipe.assign("text/a", format="bf16")
    assert {piece.encoding.format for piece in recipe.selections["text/a"]} == {"bf16"}


def test_a_piece_reads_its_own_rows(recipe: Recipe):
    recipe.assign("text/a", rows=(2, 6))
    whole = recipe.model.parameters["text/a"].source.read_values(0, 8 * 64)
    piece = recipe.selections["text/a"][1]
    np.testing.assert_array_equal(piece.values().read_values(0, 4 * 64), whole[128:384])
    assert piece.first_element == 128


@pytest.mark.parametrize("bad", [(0, 9), (-1, 2), (3, 3), (4, 2), (0.0, 2), (False, 2)])
def test_bad_rows_are_refused(recipe: Recipe, bad: tuple[int, int]):
    with pytest.raises(RecipeError, match="text/a: rows"):
        recipe.assign("text/a", rows=bad)


def test_a_scalar_cannot_be_split(recipe: Recipe):
    with pytest.raises(RecipeError, match="scalar"):
        recipe.assign("text/scalar", rows=(0, 1))


def test_a_source_must_have_the_same_shape(recipe: Recipe):
    other = ArraySource(np.zeros((8, 64), np.float32), "other")
    recipe.assign("text/a", source=other)
    assert recipe.selections["text/a"][0].source is other
    with pytest.raises(RecipeError, match=r"other has shape \[8, 64\], expected \[4, 64\]"):
        recipe.assign("text/B", source=other)


def test_unknown_names_are_refused_with_a_suggestion(recipe: Recipe):
    with pytest.raises(RecipeError, match="numeric format"):
        recipe.assign("text/a", format="q4")
    with pytest.raises(RecipeError, match="storage layout"):
        recipe.assign("text/a", layout="row_split")
    with pytest.raises(RecipeError, match="unknown method") as caught:
        recipe.assign("text/a", method="group_absmax")
    assert caught.value.hint == "did you mean grouped_absmax?"
    with pytest.raises(RecipeError, match="activation policy"):
        recipe.assign("text/a", activation_policy="AllowA16")


def test_a_refused_assignment_changes_nothing(recipe: Recipe):
    with pytest.raises(RecipeError):
        recipe.assign("text/a", format="fp32", activation_policy="none")
    assert formats(recipe)["text/a"] == "bf16"


@pytest.mark.parametrize("parameters", [{"x": object()}, {"x": float("nan")}])
def test_method_parameters_must_be_json(recipe: Recipe, parameters: dict[str, object]):
    with pytest.raises(RecipeError, match="JSON"):
        recipe.assign("text/a", parameters=parameters)


def test_a_policy_applies_to_all_uses_and_is_no_physical_change(recipe: Recipe):
    recipe.share("vision/a", "text/a")
    recipe.assign(["text/a", "vision/a"], activation_policy="AllowA8")
    assert recipe.uses["text/a", "in"].activation_policy == "AllowA8"
    assert recipe.uses["text/a", "out"].activation_policy == "AllowA8"
    assert recipe.uses["text/b", "in"].activation_policy == "A16Only"
    assert recipe.aliases == {"vision/a": "text/a"}


# --- use, share, group ---------------------------------------------------------------------


def test_one_use_can_have_its_own_policy_and_divisor(recipe: Recipe):
    recipe.use("text/a", "out", activation_policy="AllowA4")
    recipe.use("text/a", "out", auxiliaries={"activation_input_divisor": 2.5})
    settings = recipe.uses["text/a", "out"]
    assert settings.activation_policy == "AllowA4"
    assert settings.auxiliaries["activation_input_divisor"].values == np.float32(2.5)
    assert recipe.uses["text/a", "in"].auxiliaries == {}


def test_a_divisor_may_be_given_as_bytes(recipe: Recipe):
    recipe.use("text/a", "in", auxiliaries={"activation_input_divisor": struct.pack("<f", 0.1)})
    value = recipe.uses["text/a", "in"].auxiliaries["activation_input_divisor"]
    assert value.equals(AuxiliaryValue(np.array(0.1, np.float32)))


@pytest.mark.parametrize(
    "value", [0.0, -1.0, float("inf"), float("nan"), b"\0\0\0\0", b"\0\0", np.float64(1e-60)]
)
def test_divisors_must_be_positive_finite_binary32(recipe: Recipe, value: float | bytes):
    with pytest.raises(RecipeError, match="activation_input_divisor"):
        recipe.use("text/a", "in", auxiliaries={"activation_input_divisor": value})


def test_a_divisor_must_be_a_scalar(recipe: Recipe):
    vector = AuxiliaryValue(np.ones(2, np.float32))
    with pytest.raises(RecipeError, match="scalar"):
        recipe.use("text/a", "in", auxiliaries={"activation_input_divisor": vector})


def test_other_auxiliaries_need_a_typed_value(recipe: Recipe):
    with pytest.raises(RecipeError, match="AuxiliaryValue"):
        recipe.use("text/a", "in", auxiliaries={"bias": 1.0})


@pytest.mark.parametrize(("parameter", "use"), [("text/a", "x"), ("text/norm", "in"), ("x", "in")])
def test_unknown_uses_are_refused(recipe: Recipe, parameter: str, use: str):
    with pytest.raises(RecipeError, match="has no use"):
        recipe.use(parameter, use, activation_policy="AllowA8")


def test_sharing_needs_equal_shapes_and_no_circle(recipe: Recipe):
    recipe.share("text/a", "text/b")
    recipe.share("text/b", "vision/a")
    for target in ("text/a", "text/b", "vision/a"):
        with pytest.raises(RecipeError, match="circle"):
            recipe.share("vision/a", target)
    with pytest.raises(RecipeError, match="cannot be shared"):
        recipe.share("vision/a", "text/B")
    with pytest.raises(RecipeError, match="no parameter"):
        recipe.share("text/a", "text/x")


@pytest.mark.parametrize(
    "change", [{"format": "fp32"}, {"layout": "auto"}, {"rows": (0, 1)}, {"parameters": {}}]
)
def test_a_physical_change_ends_sharing(recipe: Recipe, change: dict[str, Any]):
    recipe.share("text/a", "text/b")
    recipe.assign("text/a", **change)
    assert recipe.aliases == {}


def test_groups_are_disjoint(recipe: Recipe):
    recipe.group(["text/b", "text/a"])
    assert recipe.groups[0].parameters == ("text/b", "text/a")
    with pytest.raises(RecipeError, match=r"text/a: is in another group"):
        recipe.group(["text/B", "text/a"])


def test_a_group_shape_must_hold_all_elements(recipe: Recipe):
    recipe.group(["text/a", "text/norm"], shape=(9, 64))
    with pytest.raises(RecipeError, match="does not hold"):
        recipe.group(["text/b", "text/B"], shape=(13, 64))
    with pytest.raises(RecipeError, match="does not hold"):
        recipe.group(["text/b", "text/B"], shape=(-12, -64))


# --- the model -----------------------------------------------------------------------------


def test_a_model_refuses_duplicates_and_foreign_shapes(fake_model: Callable[..., Model]):
    model = fake_model({"text/a": (2, 2)})
    source = ArraySource(np.zeros((2, 2), np.float32), "zeros")
    twice = [Parameter("text/a", (2, 2), source)] * 2
    with pytest.raises(RecipeError, match="declared twice"):
        Model(model.components, twice)
    with pytest.raises(RecipeError, match="zeros has shape"):
        Model(model.components, [Parameter("text/a", (4,), source)])
