"""Values of the 4-bit and 8-bit floats against tables made by another implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import ArtifactError, Fp8RowWords, Nvfp4Words, codec_for
from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_VALUES

VECTORS = Path(__file__).parents[2] / "data/conformance/vectors"
TABLES = json.loads((VECTORS / "fp_tables.json").read_text())
VALIDITY = json.loads((VECTORS / "word_validity.json").read_text())


@pytest.mark.parametrize(
    ("name", "values"), [("e2m1", E2M1_VALUES), ("e4m3fn", E4M3FN_VALUES)], ids=["e2m1", "e4m3fn"]
)
def test_every_word_has_its_value(name: str, values: np.ndarray) -> None:
    assert values.dtype == np.float32
    assert [entry["word"] for entry in TABLES[name]] == list(range(len(values)))
    for entry, value in zip(TABLES[name], values, strict=True):
        assert str(float(value)) == entry["value"]
        if not np.isnan(value):
            assert int(value.view(np.uint32)) == int(entry["binary32"], 16)


def fp8_words(code: int = 0x38, scale: int = 0x3F80) -> tuple[Any, Fp8RowWords]:
    codec = codec_for("fp8_e4m3fn_row_bf16", "row_scale_v1", (1, 1))
    return codec, Fp8RowWords(np.full((1, 1), code, np.uint8), np.full(1, scale, np.uint16))


def nvfp4_words(scale: int = 0x38, divisor: int = 0x3F800000) -> tuple[Any, Nvfp4Words]:
    codec = codec_for("nvfp4", "block_scale_k16_m128x4_v1", (128, 64))
    codes = np.zeros((128, 64), np.uint8)
    divisors = np.array([divisor], np.uint32)
    return codec, Nvfp4Words(codes, np.full((128, 4), scale, np.uint8), divisors)


def is_legal(tensor: tuple[Any, Any]) -> bool:
    """Whether the words validate; encoding must agree."""
    codec, words = tensor
    try:
        codec.validate(words)
    except ArtifactError:
        with pytest.raises(ArtifactError) as raised:
            codec.encode(words)
        assert raised.value.category == "codec"
        return False
    codec.encode(words)
    return True


def legality(name: str, word: int) -> bool:
    if name == "fp8_code":
        return is_legal(fp8_words(code=word))
    if name == "fp8_row_scale_bf16":
        # Under a scale of zero only a code of zero is legal.
        return is_legal(fp8_words(code=0, scale=word))
    if name == "nvfp4_scale_e4m3fn":
        return is_legal(nvfp4_words(scale=word))
    assert name == "nvfp4_divisor_fp32"
    return is_legal(nvfp4_words(divisor=word))


@pytest.mark.parametrize("name", VALIDITY)
def test_listed_words_are_legal_or_not(name: str) -> None:
    for word, legal in VALIDITY[name].items():
        assert legality(name, int(word, 16)) == legal, word


def test_every_byte_is_a_legal_code_or_scale_or_not() -> None:
    for entry in TABLES["e4m3fn"]:
        assert legality("fp8_code", entry["word"]) == entry["valid_fp8_code"]
        assert legality("nvfp4_scale_e4m3fn", entry["word"]) == entry["valid_nvfp4_scale"]
