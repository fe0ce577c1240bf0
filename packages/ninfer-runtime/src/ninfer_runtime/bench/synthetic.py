"""Models of real geometry with random weights: their speed without their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ninfer_format.errors import UsageError
from ninfer_runtime.models.registry import find_architecture

if TYPE_CHECKING:
    from ninfer_runtime.device.cuda import CudaDevice
    from ninfer_runtime.models.architecture import LanguageModel

_FOLDER = files("ninfer_runtime.bench") / "geometries"
_SUFFIX = ".json"


def known_geometries() -> list[str]:
    """Names of the geometries that come with the package."""
    names = (entry.name for entry in _FOLDER.iterdir() if entry.name.endswith(_SUFFIX))
    return sorted(name.removesuffix(_SUFFIX) for name in names)


def read_geometry(name: str) -> dict[str, Any]:
    """The configuration that `name` means: one of `known_geometries`, or a file or folder.

    Raises:
        UsageError: There is none, or it is no JSON object.
    """
    if name in known_geometries():
        text = (_FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    else:
        path = Path(name).expanduser()
        path = path / "config.json" if path.is_dir() else path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"no such geometry: {error}",
                path=path,
                hint=f"name a config.json, or one of {', '.join(known_geometries())}",
            ) from None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name}: not JSON: {error}") from None
    if not isinstance(config, dict) or not config.get("architectures"):
        raise UsageError(f"{name}: expected a JSON object with architectures")
    return cast(dict[str, Any], config)


def synthetic_model(
    config: dict[str, Any],
    recipe: str,
    device: CudaDevice,
    advance: Callable[[int, str], None] = lambda num_bytes, name: None,
) -> LanguageModel:
    """A text model of a configuration with random weights in the formats of a recipe.

    Args:
        config: A checkpoint's ``config.json``.
        recipe: Name of a recipe of the converter.
        device: Where it shall lie.
        advance: Called with bytes and a name for each weight that was made.

    Raises:
        UsageError: The recipe is not known.
        UnsupportedConfigError: The configuration is of no known family.
        UnsupportedOpError: No kernel reads a format of the recipe.
        CapacityError: The weights do not fit into the free memory of the device.
    """
    from ninfer_runtime.weights.synthetic import KERNELS, SyntheticWeights

    architecture = find_architecture(str(config["architectures"][0]))
    configs = architecture.component_configs(config, ("text",))
    store = SyntheticWeights(architecture.parameters(configs), recipe, device, advance=advance)
    device.prepare(KERNELS)
    return architecture.build(configs, store)
