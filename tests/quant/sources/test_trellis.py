"""Folders of trellis codes: words come through unchanged, stacks have one input vector or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ninfer_format import CheckpointError, Exl3Words, codec_for, open_artifact
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import Conversion

from .conftest import TEXT, Tensors, tensor_record

GATE, UP = "text/layers/3/mlp/gate", "text/layers/3/mlp/up"
IMPORT = """
def configure(model, recipe, sources):
    for name in {names}:
        source = model.source(name, sources["quantized"], "exl3_mul1")
        recipe.assign(name, source=source, format="exl3_mul1", method="import_encoded")
"""
GROUP = "    recipe.group({names})\n"


def trellis(
    shape: tuple[int, int], seed: int, half_bits: int = 5, scale: float = 0.0004
) -> Tensors:
    """Random words of a matrix [N, K], by the end of their tensors' names."""
    N, K = shape
    rng = np.random.default_rng(seed)
    return {
        "trellis": rng.integers(0, 256, (N // 16, K // 16, 16 * half_bits), np.uint8),
        "su": rng.choice([-1, 1], K).astype(np.float32) * rng.uniform(0.5, 2, K).astype(np.float32),
        "sv": (scale * rng.uniform(0.5, 2, N)).astype(np.float32),
    }


def named(name: str, words: Tensors) -> Tensors:
    return {f"{name}.{part}": array for part, array in words.items()}


def values(words: Tensors) -> np.ndarray:
    """What the codec decodes, whose own tests compare it with the specification."""
    N, K = words["sv"].size, words["su"].size
    half_bits = words["trellis"].shape[2] // 16
    codec = codec_for("exl3_mul1", "trellis_t16_v1", (N, K), bitrate_half_bits=half_bits)
    suh, svh = words["su"].view(np.uint32)[np.newaxis], words["sv"].view(np.uint32)
    return codec.decode(codec.encode(Exl3Words(words["trellis"], suh, svh)))


def test_words_are_copied_and_run(
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    logits: Callable[[Path], np.ndarray],
    reference_logits: Callable[..., np.ndarray],
    tmp_path: Path,
):
    words = trellis((768, 256), 1)
    quantized = write_weights(tmp_path / "quantized", named(GATE, words))
    path = convert_with(IMPORT.format(names=[GATE]), {"quantized": quantized})
    with open_artifact(path) as artifact:
        (part,) = artifact.parts(GATE)
        assert tensor_record(artifact, part.object).bitrate_half_bits == 5
        stored = artifact.words(part.object)
        np.testing.assert_array_equal(stored.tiles, words["trellis"])
        np.testing.assert_array_equal(stored.suh[0].view(np.float32), words["su"])
        np.testing.assert_array_equal(stored.svh.view(np.float32), words["sv"])
    reference = reference_logits({GATE: values(words)})
    np.testing.assert_allclose(logits(path), reference, rtol=0, atol=1e-4)


@pytest.mark.parametrize("one_input", [True, False])
def test_a_stack_has_one_input_vector_or_one_for_each_matrix(
    write_weights: Callable[..., Path],
    convert_with: Callable[..., Path],
    tmp_path: Path,
    one_input: bool,
):
    gate, up = trellis((768, 256), 1), trellis((768, 256), 2)
    if one_input:
        up["su"] = gate["su"]
    quantized = write_weights(tmp_path / "quantized", named(GATE, gate) | named(UP, up))
    recipe = IMPORT.format(names=[GATE, UP]) + GROUP.format(names=[GATE, UP])
    path = convert_with(recipe, {"quantized": quantized})
    with open_artifact(path) as artifact:
        (part,) = artifact.parts(UP)
        record = tensor_record(artifact, part.object)
        assert (record.shape, record.divisors) == ((1536, 256), 1 if one_input else 2)
        np.testing.assert_array_equal(artifact.decode_parameter(UP, (768, 256)), values(up))


def test_one_object_has_one_rate(
    write_weights: Callable[..., Path], plan: Callable[..., Conversion], tmp_path: Path
):
    content = named(GATE, trellis((768, 256), 1)) | named(UP, trellis((768, 256), 2, 8))
    quantized = write_weights(tmp_path / "quantized", content)
    conversion = plan(IMPORT.format(names=[GATE, UP]), {"quantized": quantized})
    rates = {item.target.bitrate_half_bits for item in conversion.preparation.weights}
    assert rates == {None, 5, 8}
    with pytest.raises(RecipeError, match="several rates"):
        plan(
            IMPORT.format(names=[GATE, UP]) + GROUP.format(names=[GATE, UP]),
            {"quantized": quantized},
        )


@pytest.mark.parametrize(
    ("part", "array"),
    [
        ("trellis", np.zeros((48, 16, 79), np.uint8)),
        ("trellis", np.zeros((48, 16, 16), np.uint8)),
        ("trellis", np.zeros((47, 16, 80), np.uint8)),
        ("su", np.zeros(255, np.float32)),
        ("sv", np.zeros(768, np.float16)),
    ],
)
def test_what_is_no_trellis_code_is_refused(
    write_weights: Callable[..., Path],
    plan: Callable[..., Conversion],
    tmp_path: Path,
    part: str,
    array: np.ndarray,
):
    content = named(GATE, trellis((768, 256), 1) | {part: array})
    quantized = write_weights(tmp_path / "quantized", content)
    with pytest.raises(CheckpointError) as caught:
        plan(IMPORT.format(names=[GATE]), {"quantized": quantized})
    assert caught.value.tensors == (f"{GATE}.{part}",)


def test_a_checkpoint_of_exllamav3_is_refused(
    write_weights: Callable[..., Path], plan: Callable[..., Conversion], tmp_path: Path
):
    prefix = f"{TEXT}layers.3.mlp.gate_proj"
    content = {
        f"{prefix}.trellis": np.zeros((16, 48, 48), np.int16),
        f"{prefix}.suh": np.ones(256, np.float16),
        f"{prefix}.svh": np.ones(768, np.float16),
    }
    quantized = write_weights(tmp_path / "quantized", content)
    with pytest.raises(CheckpointError, match="exllamav3 checkpoint, which cannot be imported"):
        plan(IMPORT.format(names=[GATE]), {"quantized": quantized})
