from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import Binding, Part
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.pipeline.prepare import Preparation, prepare
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.recipes.selection import AuxiliaryValue

FakeModel = Callable[..., Model]

ATTENTION = {f"text/{role}": (8, 64) for role in ("query", "gate", "key", "value")}
GROUPS = (
    ("text/query", "text/key", "text/gate", "text/value"),
    ("text/query", "text/key"),
    ("text/gate", "text/value"),
)
Q4: dict[str, Any] = {"format": "q4_g64_fp16", "method": "grouped_absmax"}
Q5: dict[str, Any] = {"format": "q5_g64_fp16", "method": "grouped_absmax"}


def parents(preparation: Preparation) -> list[tuple[str, ...]]:
    return [weight.request.parameter_names for weight in preparation.weights]


def prepared(recipe: Recipe) -> Preparation:
    return prepare(recipe, rows_per_chunk=512)


# --- packing -------------------------------------------------------------------------------


def test_the_widest_compatible_group_wins(fake_model: FakeModel):
    recipe = Recipe(fake_model(ATTENTION, groups=GROUPS))
    preparation = prepared(recipe)
    assert parents(preparation) == [GROUPS[0]]
    assert preparation.weights[0].target.shape == (32, 64)


def test_narrow_groups_take_what_a_wide_one_cannot(fake_model: FakeModel):
    recipe = Recipe(fake_model(ATTENTION, groups=GROUPS))
    recipe.assign(["text/query", "text/key"], **Q4)
    recipe.assign(["text/gate", "text/value"], **Q5)
    assert parents(prepared(recipe)) == [GROUPS[1], GROUPS[2]]


def test_members_left_over_stand_alone_in_parameter_order(fake_model: FakeModel):
    recipe = Recipe(fake_model(ATTENTION, groups=GROUPS))
    recipe.assign(["text/query", "text/key"], **Q4)
    recipe.assign("text/gate", **Q5)
    assert parents(prepared(recipe)) == [GROUPS[1], ("text/gate",), ("text/value",)]


@pytest.mark.parametrize("change", ["separate", "split", "share", "parameters", "method"])
def test_a_group_is_skipped_when_a_member_does_not_fit(fake_model: FakeModel, change: str):
    recipe = Recipe(fake_model(ATTENTION, groups=(("text/query", "text/key"),)))
    if change == "separate":
        recipe.separate("text/key")
    elif change == "split":
        recipe.assign("text/key", rows=(0, 4))
    elif change == "share":
        recipe.share("text/key", "text/gate")
    elif change == "parameters":
        recipe.assign("text/key", method=accepts_anything, parameters={"x": 1})
        recipe.assign("text/query", method=accepts_anything, parameters={"x": 2})
    else:
        recipe.assign(["text/query", "text/key"], method=accepts_anything)
    assert all(len(names) == 1 for names in parents(prepared(recipe)))


def accepts_anything(request: MethodRequest) -> MethodJob:
    def produce(output: ObjectOutput) -> None:
        raise AssertionError("preparation must not produce")

    return MethodJob(produce)


def test_explicit_groups_come_first_and_keep_their_order(fake_model: FakeModel):
    recipe = Recipe(fake_model(ATTENTION, groups=GROUPS))
    recipe.group(["text/value", "text/query"])
    preparation = prepared(recipe)
    assert parents(preparation) == [("text/value", "text/query"), ("text/gate",), ("text/key",)]
    assert [weight.target.id for weight in preparation.weights] == [
        "weight/000000",
        "weight/000001",
        "weight/000002",
    ]


def test_a_custom_method_may_be_grouped_explicitly(fake_model: FakeModel):
    recipe = Recipe(fake_model(ATTENTION))
    recipe.assign("*", method=accepts_anything)
    recipe.group(["text/query", "text/gate"])
    assert parents(prepared(recipe))[0] == ("text/query", "text/gate")
    assert prepared(recipe).weights[0].method_name.endswith(":accepts_anything")


def test_grouped_members_must_be_encoded_alike(fake_model: FakeModel):
    recipe = Recipe(fake_model(ATTENTION))
    recipe.assign("text/gate", **Q4)
    recipe.group(["text/query", "text/gate"])
    with pytest.raises(RecipeError, match=r"text/query \(\+1\): .* encoded alike"):
        prepared(recipe)


def test_split_or_shared_parameters_cannot_be_grouped(fake_model: FakeModel):
    recipe = Recipe(fake_model(ATTENTION))
    recipe.group(["text/query", "text/gate"])
    recipe.assign("text/gate", rows=(0, 4))
    with pytest.raises(RecipeError, match="text/gate: is split"):
        prepared(recipe)
    recipe = Recipe(fake_model(ATTENTION))
    recipe.group(["text/query", "text/gate"])
    recipe.share("text/gate", "text/key")
    with pytest.raises(RecipeError, match="text/gate: is shared"):
        prepared(recipe)


def test_one_object_belongs_to_one_residency(fake_model: FakeModel):
    recipe = Recipe(fake_model({"text/a": (8, 64), "mtp/a": (8, 64)}))
    recipe.group(["text/a", "mtp/a"])
    with pytest.raises(RecipeError, match=r"\['mtp', 'text'\]"):
        prepared(recipe)


# --- shapes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "parent"),
    [
        ((), (1, 1)),
        ((64,), (1, 64)),
        ((3, 64), (3, 64)),
        ((2, 3, 64), (6, 64)),
    ],
)
def test_quantized_parents_are_matrices(
    fake_model: FakeModel, shape: tuple[int, ...], parent: tuple[int, int]
):
    recipe = Recipe(fake_model({"text/a": shape}))
    recipe.assign("text/a", **Q4)
    preparation = prepared(recipe)
    assert preparation.weights[0].target.shape == parent
    elements = int(np.prod(shape))
    assert preparation.bindings["text/a"] == (
        Binding("weight/000000")
        if shape == parent
        else Binding(parts=(Part("weight/000000", 0, elements),))
    )


@pytest.mark.parametrize("shape", [(), (64,), (3, 64), (2, 3, 64)])
def test_direct_parents_keep_the_shape(fake_model: FakeModel, shape: tuple[int, ...]):
    preparation = prepared(Recipe(fake_model({"text/a": shape})))
    assert preparation.weights[0].target.shape == shape
    assert preparation.bindings == {"text/a": Binding("weight/000000")}


@pytest.mark.parametrize(("encoding", "parent"), [({}, (5,)), (Q4, (1, 5))])
def test_vectors_are_joined(
    fake_model: FakeModel, encoding: dict[str, Any], parent: tuple[int, ...]
):
    recipe = Recipe(fake_model({"text/a": (2,), "text/b": (3,)}, groups=(("text/a", "text/b"),)))
    if encoding:
        recipe.assign("*", **encoding)
    preparation = prepared(recipe)
    assert preparation.weights[0].target.shape == parent
    assert preparation.bindings["text/b"] == Binding(parts=(Part("weight/000000", 2, 5),))


def test_matrices_of_one_width_are_stacked(fake_model: FakeModel):
    recipe = Recipe(fake_model({"text/a": (2, 64), "text/b": (5, 64)}))
    recipe.group(["text/b", "text/a"])
    preparation = prepared(recipe)
    assert preparation.weights[0].target.shape == (7, 64)
    assert preparation.bindings["text/a"].parts == (Part("weight/000000", 5 * 64, 7 * 64),)


def test_other_shapes_need_an_explicit_parent(fake_model: FakeModel):
    shapes: dict[str, tuple[int, ...]] = {"text/a": (2, 64), "text/b": (64,)}
    recipe = Recipe(fake_model(shapes))
    recipe.group(list(shapes))
    with pytest.raises(RecipeError, match="no common parent shape"):
        prepared(recipe)
    recipe = Recipe(fake_model(shapes))
    recipe.group(list(shapes), shape=(3, 64))
    preparation = prepared(recipe)
    assert preparation.weights[0].target.shape == (3, 64)
    assert preparation.bindings["text/b"].parts == (Part("weight/000000", 128, 192),)


# --- bindings, uses, auxiliaries -----------------------------------------------------------


def test_a_split_parameter_is_bound_to_its_pieces_in_row_order(fake_model: FakeModel):
    recipe = Recipe(fake_model({"text/z": (1,), "text/a": (8, 64)}))
    recipe.assign("text/a", rows=(2, 6), **Q4)
    preparation = prepared(recipe)
    assert [weight.target.shape for weight in preparation.weights] == [
        (1,),
        (2, 64),
        (4, 64),
        (2, 64),
    ]
    assert preparation.bindings["text/a"].parts == (
        Part("weight/000001", 0, 128),
        Part("weight/000002", 0, 256),
        Part("weight/000003", 0, 128),
    )


def test_shared_parameters_copy_the_binding_at_the_end_of_the_chain(fake_model: FakeModel):
    shapes = {"text/a": (8, 64), "text/b": (8, 64), "text/c": (8, 64)}
    recipe = Recipe(fake_model(shapes, inputs=dict.fromkeys(shapes, ("in",))))
    recipe.share("text/a", "text/b")
    recipe.share("text/b", "text/c")
    preparation = prepared(recipe)
    assert parents(preparation) == [("text/c",)]
    assert set(map(str, preparation.bindings.values())) == {str(Binding("weight/000000"))}
    assert list(preparation.bindings) == list(shapes)
    assert [use.parameter for use in preparation.uses] == list(shapes)


def test_uses_come_in_parameter_order_with_their_policies(fake_model: FakeModel):
    inputs = {"text/a": ("x", "y"), "text/b": ("x",)}
    recipe = Recipe(fake_model({"text/b": (2, 2), "text/a": (2, 2)}, inputs=inputs))
    recipe.use("text/a", "y", activation_policy="AllowA8")
    uses = prepared(recipe).uses
    assert [(use.parameter, use.input, use.activation_policy) for use in uses] == [
        ("text/b", "x", "A16Only"),
        ("text/a", "x", "A16Only"),
        ("text/a", "y", "AllowA8"),
    ]


def test_every_auxiliary_has_its_own_object_even_when_values_coincide(fake_model: FakeModel):
    inputs = {"text/a": ("x", "y")}
    recipe = Recipe(fake_model({"text/a": (2, 2)}, inputs=inputs))
    for use in ("y", "x"):
        recipe.use("text/a", use, auxiliaries={"activation_input_divisor": 2.0})
    preparation = prepared(recipe)
    assert [item.target.id for item in preparation.auxiliaries] == [
        "auxiliary/000000",
        "auxiliary/000001",
    ]
    assert {item.target.shape for item in preparation.auxiliaries} == {()}
    assert [dict(use.auxiliaries) for use in preparation.uses] == [
        {"activation_input_divisor": Binding("auxiliary/000000")},
        {"activation_input_divisor": Binding("auxiliary/000001")},
    ]


def with_auxiliary(parameter: str, use: str, value: float):
    def method(request: MethodRequest) -> MethodJob:
        auxiliary = AuxiliaryValue(np.array(value, np.float32))
        key = (parameter, use, "activation_input_divisor")
        return MethodJob(accepts_anything(request).produce, {key: auxiliary})

    return method


def test_a_method_can_add_auxiliaries(fake_model: FakeModel):
    recipe = Recipe(fake_model({"text/a": (2, 2)}, inputs={"text/a": ("x",)}))
    recipe.assign("text/a", method=with_auxiliary("text/a", "x", 3.0))
    (item,) = prepared(recipe).auxiliaries
    assert item.value.values == 3.0


def test_auxiliaries_of_unknown_uses_and_contradictions_are_refused(fake_model: FakeModel):
    model = fake_model({"text/a": (2, 2), "text/b": (2, 2)}, inputs={"text/a": ("x",)})
    for key in (("text/a", "y"), ("text/b", "x"), ("text/c", "x")):
        recipe = Recipe(model)
        recipe.assign("text/a", method=with_auxiliary(*key, 3.0))
        with pytest.raises(RecipeError, match="unknown use"):
            prepared(recipe)
    recipe = Recipe(model)
    recipe.use("text/a", "x", auxiliaries={"activation_input_divisor": 2.0})
    recipe.assign("text/a", method=with_auxiliary("text/a", "x", 3.0))
    with pytest.raises(RecipeError, match="text/a: two values"):
        prepared(recipe)


# --- methods and layouts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "q4_g64_fp16"}, "cast_direct writes direct formats"),
        ({"method": "grouped_absmax"}, "grouped_absmax writes grouped"),
        ({"layout": "row_split_k128_v1"}, "does not store format"),
        ({**Q4, "parameters": {"ratio": 0.5}}, "takes no parameters"),
        ({"parameters": {"ratio": 0.5}}, "takes no parameters"),
    ],
)
def test_methods_refuse_what_they_cannot_do(
    fake_model: FakeModel, change: dict[str, Any], message: str
):
    recipe = Recipe(fake_model({"text/a": (2, 64), "text/b": (2, 64)}))
    recipe.assign("*", **change)
    recipe.group("*")
    with pytest.raises(RecipeError, match=rf"text/a \(\+1\): .*{message}"):
        prepared(recipe)


def test_a_grouped_parent_must_be_a_matrix(fake_model: FakeModel):
    recipe = Recipe(fake_model({"text/a": (2, 64), "text/b": (2, 64)}))
    recipe.assign("*", **Q4)
    recipe.group("*", shape=(2, 2, 64))
    with pytest.raises(RecipeError, match="writes matrices"):
        prepared(recipe)


def test_the_chunk_must_be_positive(fake_model: FakeModel):
    with pytest.raises(RecipeError, match="rows per chunk"):
        prepare(Recipe(fake_model({"text/a": (2,)})), rows_per_chunk=0)


# --- a property ----------------------------------------------------------------------------

NAMES = ("text/a", "text/b", "text/c", "text/d")
actions = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.sampled_from(NAMES), st.integers(0, 7), st.integers(1, 8)),
        st.tuples(st.just("format"), st.sampled_from(NAMES), st.sampled_from([4, 5, 6])),
        st.tuples(st.just("separate"), st.sampled_from(NAMES)),
        st.tuples(st.just("share"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    ),
    max_size=8,
)


@given(actions)
def test_any_recipe_binds_every_element_once_to_its_own_values(
    fake_model: FakeModel, calls: list[tuple]
):
    model = fake_model(dict.fromkeys(NAMES, (8, 64)), groups=(NAMES, NAMES[:2], NAMES[2:]))
    recipe = Recipe(model)
    for kind, name, *arguments in calls:
        if kind == "rows":
            begin, end = arguments
            recipe.assign(name, rows=(min(begin, end - 1), end))
        elif kind == "format":
            recipe.assign(name, format=f"q{arguments[0]}_g64_fp16", method="grouped_absmax")
        elif kind == "separate":
            recipe.separate(name)
        elif (
            arguments[0] != name
            and arguments[0] not in recipe.aliases
            and name not in recipe.aliases.values()
        ):
            recipe.share(name, arguments[0])
    owner = {name: recipe.aliases.get(name, name) for name in NAMES}
    preparation = prepared(recipe)
    requests = {weight.target.id: weight.request for weight in preparation.weights}
    for name, binding in preparation.bindings.items():
        whole = Part(binding.object or "", 0, 8 * 64)
        parts = (whole,) if binding.object is not None else binding.parts
        values = [requests[part.object].values(part.begin, part.end) for part in parts]
        expected = model.parameters[owner[name]].source.read_values(0, 8 * 64)
        np.testing.assert_array_equal(np.concatenate(values), expected)
