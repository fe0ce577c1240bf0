"""Components of a converted model, attached to a conversion of its text alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ninfer_format import Artifact, attach_component, open_artifact
from ninfer_runtime.models.registry import find_architecture


@pytest.fixture(scope="module")
def attached(
    convert: Callable[..., Path], quantized: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Text in BF16, with multi-token prediction and vision of the quantized model."""
    folder = tmp_path_factory.mktemp("attached")
    text = convert(folder / "text.ninfer", "qwen3_8_27b_bf16", components=("text",))
    with open_artifact(quantized) as donor:
        with open_artifact(text) as base:
            once = attach_component(base, donor, folder / "1.ninfer", "mtp")
        with open_artifact(once) as base:
            return attach_component(base, donor, folder / "2.ninfer", "vision")


def uses(artifact: Artifact) -> set[tuple[str, str]]:
    return {(use.parameter, use.input) for use in artifact.directory.uses}


def test_the_result_has_what_a_conversion_of_all_components_has(attached: Path, quantized: Path):
    with open_artifact(attached) as found, open_artifact(quantized) as whole:
        assert found.directory.bindings.keys() == whole.directory.bindings.keys()
        assert uses(found) == uses(whole)
        assert found.directory.components.keys() == whole.directory.components.keys()
        for name, component in whole.directory.components.items():
            assert found.directory.components[name].config == component.config
            for role in component.resources:
                assert found.resource(name, role) == whole.resource(name, role)


def test_the_runtime_finds_every_parameter(attached: Path, quantized: Path):
    with open_artifact(attached) as found, open_artifact(quantized) as whole:
        configs = {key: dict(item.config) for key, item in found.directory.components.items()}
        (architecture,) = configs["text"]["architectures"]
        for parameter in find_architecture(architecture).parameters(configs):
            value = found.decode_parameter(parameter.name, parameter.shape)
            if not parameter.name.startswith("text/"):
                wanted = whole.decode_parameter(parameter.name, parameter.shape)
                np.testing.assert_array_equal(value, wanted, err_msg=parameter.name)
