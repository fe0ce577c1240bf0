"""Finding a recipe: a built-in name, or a function in a Python file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from ninfer_format.errors import NInferError, UsageError
from ninfer_format.nearest import did_you_mean
from ninfer_quant.errors import RecipeError
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.model import Model
from ninfer_quant.sources.store import WeightStore

Configure = Callable[[Model, Recipe, Mapping[str, WeightStore]], object]
"""A recipe's function; what it returns is ignored."""

DEFAULT_FUNCTION = "configure"


@dataclass(frozen=True, slots=True)
class OfficialRecipe:
    """What is known of a built-in recipe without loading it.

    Attributes:
        assigns: What it assigns to the text model.
        sources: Names of the checkpoints that it reads; ``base`` is the model's own.
    """

    assigns: str
    sources: tuple[str, ...] = ("base",)


WITH_QUANTIZED = ("base", "quantized")

OFFICIAL = {
    "qwen3_6_27b": OfficialRecipe("Q4/Q5 matrices, Q6 embedding and output head"),
    "qwen3_8_27b": OfficialRecipe("Q4/Q5 matrices, Q8 embedding and output head"),
    "qwen3_8_27b_q6": OfficialRecipe("as qwen3_8_27b with Q6 MLP gate and up"),
    "qwen3_8_27b_bf16": OfficialRecipe("everything BF16"),
    "qwen3_8_27b_exl3": OfficialRecipe("imported trellis codes, the rest BF16", WITH_QUANTIZED),
    "qwen3_6_27b_nvfp4": OfficialRecipe(
        "imported NVFP4, sensitive matrices BF16, Q8 embedding and output head", WITH_QUANTIZED
    ),
    "qwen3_8_27b_nvfp4": OfficialRecipe("imported NVFP4 MLP, the rest FP8", WITH_QUANTIZED),
    "qwen3_6_35b_a3b": OfficialRecipe("Q4/Q5 experts, Q8 otherwise, Q6 output head"),
    "qwen3_6_35b_a3b_nvfp4": OfficialRecipe(
        "as qwen3_6_35b_a3b with imported NVFP4 experts", WITH_QUANTIZED
    ),
    "qwen3_x_nvfp4_local": OfficialRecipe("as qwen3_8_27b with NVFP4 MLP made here, by nvfp4_mse"),
}
"""The built-in recipes by name."""


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe that can be applied.

    Attributes:
        label: What messages and reports call it.
        configure: Its function.
        path: Its file, None for a built-in recipe.
        sha256: Hash of the file, None for a built-in recipe.
    """

    label: str
    configure: Configure
    path: Path | None = None
    sha256: str | None = None

    @property
    def identity(self) -> dict[str, str]:
        """Name, and the file's hash if it has one; independent of the machine."""
        return {"name": self.label} | ({} if self.sha256 is None else {"sha256": self.sha256})

    def apply(self, model: Model, recipe: Recipe, sources: Mapping[str, WeightStore]) -> None:
        """Run the recipe's function.

        Raises:
            RecipeError: The function asked for something that cannot be done, or raised something
                else; file and line are named.
        """
        try:
            with _importable(self.path):
                self.configure(model, recipe, sources)
        except RecipeError as error:
            where = f"recipe {self.label}: " if self.path is None else _line(self.path, error)
            located = RecipeError(f"{where}{error}", path=self.path, hint=error.hint)
            # Not given to the constructor, because the message has them already.
            located.parameters = error.parameters
            raise located from error
        except NInferError:
            raise
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"{_line(self.path, error)}recipe {self.label} failed: "
                f"{type(error).__name__}: {error}",
                path=self.path,
                hint="run again with --debug for the traceback",
            ) from error


def load_recipe(reference: str) -> LoadedRecipe:
    """Load a recipe by reference.

    Args:
        reference: Name of a built-in recipe, or ``FILE.py`` with an optional ``:FUNCTION``.

    Raises:
        UsageError: There is no built-in recipe of that name, or no such file.
        RecipeError: The file cannot be imported, or has no such function.
    """
    file, _, function = reference.partition(".py:")
    if function or reference.endswith(".py"):
        path = Path(f"{file}.py" if function else reference)
        return _load_file(path, function or DEFAULT_FUNCTION)
    if reference not in OFFICIAL:
        raise UsageError(
            f"unknown recipe {reference!r}",
            hint=did_you_mean(reference, OFFICIAL)
            or f"built-in recipes are {', '.join(OFFICIAL)}; a file ends in .py",
        )
    module = importlib.import_module(f"ninfer_quant.recipes.official.{reference}")
    return LoadedRecipe(reference, getattr(module, DEFAULT_FUNCTION))


def _load_file(path: Path, function: str) -> LoadedRecipe:
    path = path.expanduser()
    if not path.is_file():
        raise UsageError("no such recipe file", path=path)
    configure = getattr(_import_file(path), function, None)
    if not callable(configure):
        raise RecipeError(f"the recipe file has no function {function!r}", path=path)
    digest = sha256(path.read_bytes()).hexdigest()
    return LoadedRecipe(f"{path.name}:{function}", configure, path, digest)


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ninfer_recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RecipeError("the recipe file is not Python", path=path)
    module = importlib.util.module_from_spec(spec)
    with _importable(path):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"{_line(path, error)}the recipe file cannot be imported: "
                f"{type(error).__name__}: {error}",
                path=path,
            ) from error
    return module


def _line(path: Path | None, error: BaseException) -> str:
    """The line of a recipe file that led to an error, as the beginning of a message."""
    if path is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.absolute()]
    return f"line {lines[-1]}: " if lines else ""


@contextmanager
def _importable(path: Path | None) -> Iterator[None]:
    """Let a recipe file import modules that lie beside it."""
    if path is None:
        yield
        return
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
