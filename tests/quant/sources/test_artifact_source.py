"""An artifact as a source: words and values by logical name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ninfer_format import CheckpointError, Nvfp4Words, open_artifact
from ninfer_quant.pipeline.conversion import Conversion

COPY = """
def configure(model, recipe, sources):
    for name, parameter in model.parameters.items():
        source = model.source(name, sources["old"])
        recipe.assign(name, source=source)
        if source.encoded is not None:
            recipe.assign(name, format=source.encoded.format, method="import_encoded")
    recipe.separate("text/layers/*/gdn/[ab]_projection")
"""


@pytest.fixture
def no_weights(model_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """Configuration and resources of the tiny model alone."""
    return model_folder(tmp_path / "model", None)


def test_every_word_of_an_artifact_can_be_imported_again(
    quantized: Path, no_weights: Path, convert_with: Callable[..., Path]
):
    path = convert_with(
        COPY, {"old": quantized}, model=no_weights, components=("text", "vision", "mtp")
    )
    with open_artifact(quantized) as old, open_artifact(path) as new:
        assert old.directory.bindings == new.directory.bindings
        for before, after in zip(old.directory.tensors, new.directory.tensors, strict=True):
            assert (before.id, before.format, before.shape) == (after.id, after.format, after.shape)
            np.testing.assert_array_equal(old.read_object(before.id), new.read_object(after.id))


def test_block_scaled_rows_are_read_across_the_blocks_of_their_layout(
    quantized: Path, no_weights: Path, tmp_path: Path, plan: Callable[..., Conversion]
):
    from ninfer_format import (
        ArtifactWriter,
        Binding,
        Component,
        Part,
        TensorSpec,
        Use,
        codec_for,
        nvfp4_absmax,
        plan_artifact,
    )
    from ninfer_quant.sources.artifact_store import ArtifactStore

    weight = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
    words = nvfp4_absmax(weight)
    spec = TensorSpec("w", (256, 128), "nvfp4", "block_scale_k16_m128x4_v1")
    bindings = {
        name: Binding(parts=(Part("w", begin * 128, end * 128),))
        for name, begin, end in (("text/a", 0, 100), ("text/b", 100, 256))
    }
    divisor = TensorSpec("d", (), "fp32", "contiguous_le_v1")
    uses = [Use("text/b", "x", "AllowA4", {"activation_input_divisor": Binding("d")})]
    planned = plan_artifact(
        [spec, divisor], components={"text": Component({})}, bindings=bindings, uses=uses
    )
    path = tmp_path / "small.ninfer"
    with ArtifactWriter(path, planned) as writer:
        writer.write("w", 0, codec_for(spec.format, spec.layout, spec.shape).encode(words))
        writer.write("d", 0, np.array([42], "<f4").view(np.uint8))
    store = ArtifactStore(path)
    source = store.parameter("text/b", (156, 128))
    assert source.encoded is not None
    read = source.encoded.read_rows(20, 60)
    assert isinstance(read, Nvfp4Words)
    np.testing.assert_array_equal(read.codes, words.codes[120:160])
    np.testing.assert_array_equal(read.scales, words.scales[120:160])
    assert source.encoded.weight_divisor() == words.divisors.view(np.float32)[0]
    assert source.encoded.input_divisor() == 42
    other = store.parameter("text/a", (100, 128)).encoded
    assert other is not None
    assert other.input_divisor() is None
    with pytest.raises(CheckpointError, match="elements, expected"):
        store.parameter("text/a", (99, 128))
    with pytest.raises(CheckpointError, match="no parameter"):
        store.parameter("text/c", (99, 128))


def test_a_parameter_that_the_artifact_lacks_is_named(
    direct: Path, plan: Callable[..., Conversion], tmp_path: Path, convert: Callable[..., Path]
):
    text_only = convert(tmp_path / "text.ninfer", components=("text",), verify="none")
    with pytest.raises(CheckpointError) as caught:
        plan(COPY, {"old": text_only}, components=("text", "mtp"))
    assert caught.value.tensors == ("mtp/input_projection",)
