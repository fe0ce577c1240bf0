from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from ninfer_format.errors import UsageError
from ninfer_quant.errors import RecipeError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.loading import load_recipe
from ninfer_quant.recipes.model import Model


@pytest.fixture
def model(fake_model: Callable[..., Model]) -> Model:
    return fake_model({"text/a": (2, 64)})


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_is_loaded_with_its_default_and_named_function(tmp_path: Path, model: Model):
    text = (
        "def configure(model, recipe, sources):\n    recipe.assign('*', format='fp32')\n"
        "def other(model, recipe, sources):\n    recipe.assign('*', format='int32')\n"
    )
    path = write(tmp_path / "mein rezept ü.py", text)
    for reference, expected in ((path, "fp32"), (f"{path}:other", "int32")):
        recipe = Recipe(model)
        loaded = load_recipe(reference)
        loaded.apply(model, recipe, {})
        assert recipe.selections["text/a"][0].encoding.format == expected
        assert loaded.sha256 == sha256(text.encode()).hexdigest()
    assert load_recipe(path).identity["name"] == "mein rezept ü.py:configure"


def test_modules_beside_a_recipe_can_be_imported_at_any_time(tmp_path: Path, model: Model):
    write(tmp_path / "beside_the_recipe.py", "FORMAT = 'fp32'\n")
    path = write(
        tmp_path / "recipe.py",
        "def configure(model, recipe, sources):\n"
        "    from beside_the_recipe import FORMAT\n"
        "    recipe.assign('*', format=FORMAT)\n",
    )
    before = list(sys.path)
    recipe = Recipe(model)
    load_recipe(path).apply(model, recipe, {})
    assert recipe.selections["text/a"][0].encoding.format == "fp32"
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("qwen3_8_27", "did you mean qwen3_8_27b?"),
        ("qwen3_6_27b_bf16", "did you mean qwen3_8_27b_bf16?"),
        ("zzz", "built-in recipes are"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name: str, hint: str):
    with pytest.raises(UsageError, match=f"unknown recipe '{name}'") as caught:
        load_recipe(name)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


def test_a_missing_file_and_a_missing_function_are_named(tmp_path: Path):
    with pytest.raises(UsageError, match="no such recipe file"):
        load_recipe(str(tmp_path / "none.py"))
    path = write(tmp_path / "recipe.py", "configure = 3\n")
    with pytest.raises(RecipeError, match="no function 'configure'"):
        load_recipe(path)


def test_a_file_that_does_not_import_is_reported(tmp_path: Path):
    path = write(tmp_path / "recipe.py", "import no_such_module_at_all\n")
    with pytest.raises(RecipeError, match="cannot be imported: ModuleNotFoundError"):
        load_recipe(path)


def test_a_recipe_that_raises_is_reported_with_its_line(tmp_path: Path, model: Model):
    path = write(tmp_path / "recipe.py", "def configure(model, recipe, sources):\n    1 / 0\n")
    with pytest.raises(
        RecipeError, match=r"recipe\.py: line 2: recipe .* failed: ZeroDivisionError"
    ):
        load_recipe(path).apply(model, Recipe(model), {})


def test_a_recipe_cannot_end_the_command_as_if_it_had_succeeded(tmp_path: Path, model: Model):
    leave = "import sys\nsys.exit(0)\n"
    path = write(tmp_path / "import.py", leave)
    with pytest.raises(RecipeError, match=r"line 2: .* cannot be imported: SystemExit"):
        load_recipe(path)
    path = write(tmp_path / "call.py", "def configure(model, recipe, sources):\n    exit()\n")
    with pytest.raises(RecipeError, match=r"line 2: recipe .* failed: SystemExit"):
        load_recipe(path).apply(model, Recipe(model), {})


def test_an_error_that_the_interface_raises_is_reported_with_its_line(tmp_path: Path, model: Model):
    path = write(
        tmp_path / "recipe.py",
        "def configure(model, recipe, sources):\n"
        "    helper(recipe)\n"
        "def helper(recipe):\n"
        "    recipe.assign('text/a', rows=(0, 9))\n",
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(path).apply(model, Recipe(model), {})
    assert str(caught.value) == (
        f"{path}: line 4: text/a: rows (0, 9) are not a range inside [0, 2)"
    )
    assert caught.value.parameters == ("text/a",)


def test_another_error_inside_the_interface_has_the_line_of_the_recipe(
    tmp_path: Path, model: Model
):
    path = write(
        tmp_path / "recipe.py",
        "def configure(model, recipe, sources):\n    recipe.assign(3, format='fp32')\n",
    )
    with pytest.raises(RecipeError, match=r"recipe\.py: line 2: .*TypeError"):
        load_recipe(path).apply(model, Recipe(model), {})


def test_a_file_that_fails_while_it_is_imported_is_reported_with_its_line(tmp_path: Path):
    path = write(tmp_path / "recipe.py", "x = 1\nx.nothing\n")
    with pytest.raises(RecipeError, match=r"line 2: .*cannot be imported: AttributeError"):
        load_recipe(path)


def test_a_built_in_recipe_that_does_not_fit_is_named(model: Model):
    with pytest.raises(RecipeError, match=r"^recipe qwen3_8_27b: this recipe is for dense"):
        load_recipe("qwen3_8_27b").apply(model, Recipe(model), {})
