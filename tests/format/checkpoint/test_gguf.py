"""GGUF files: honest ones of every type, damaged ones and ones made to mislead."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import CheckpointError, GgufCheckpoint

RNG = np.random.default_rng(20)
BLOCK_TYPES = [type_ for type_ in GGMLQuantizationType if GGML_QUANT_SIZES[type_][0] > 1]
WITHOUT_VALUES = {"Q8_1", "Q8_K", "Q1_0"}
"""Types that the gguf package has sizes for, but no dequantization."""
VALUES = RNG.standard_normal((3, 512)).astype(np.float32)


def write(path: Path, tensors: Mapping[str, tuple[np.ndarray, Any]], **metadata: Any) -> Path:
    """A file by the gguf package; each tensor is (bytes or values, ggml type or None)."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        writer.add_key_value(f"test.{key}", *value)
    for name, (array, type_) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_names_shapes_and_sizes(tmp_path: Path) -> None:
    quantized = gguf.quantize(VALUES, GGMLQuantizationType.Q8_0)
    path = write(
        tmp_path / "m.gguf",
        {"b": (quantized, GGMLQuantizationType.Q8_0), "a": (VALUES[0, :5], None)},
    )
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.version == 3
    assert checkpoint.names == ("a", "b")
    assert "a" in checkpoint
    assert "c" not in checkpoint
    info = checkpoint.info("b")
    assert (info.dtype, info.shape, info.num_bytes, info.elements, info.file) == (
        "Q8_0",
        (3, 512),
        quantized.nbytes,
        3 * 512,
        path,
    )
    assert path.read_bytes()[info.offset : info.offset + info.num_bytes] == quantized.tobytes()
    assert checkpoint.total_bytes == quantized.nbytes + 20


@pytest.mark.parametrize("type_", BLOCK_TYPES, ids=lambda type_: type_.name)
def test_every_block_type_is_read_as_the_package_dequantizes_it(
    type_: GGMLQuantizationType, tmp_path: Path
) -> None:
    """Ranges, also ones that begin and end inside a block, equal a part of the whole."""
    elements, num_bytes = GGML_QUANT_SIZES[type_]
    columns = 2 * elements
    stored = RNG.integers(0, 256, (3, 2 * num_bytes), dtype=np.uint8)
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", {"w": (stored, type_)}))
    info = checkpoint.info("w")
    assert (info.dtype, info.shape, info.num_bytes) == (type_.name, (3, columns), stored.nbytes)
    if type_.name in WITHOUT_VALUES:
        with pytest.raises(CheckpointError, match=f"'w' is of type {type_.name}"):
            checkpoint.read("w")
        return
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(stored, type_).reshape(-1)
    for begin, end in [(0, None), (columns, 2 * columns), (3, 7), (elements - 1, 4 * elements + 1)]:
        found = checkpoint.read("w", begin, end)
        assert found.dtype == np.float32
        assert found.view(np.uint32).tolist() == expected[begin:end].view(np.uint32).tolist()


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i1", "i2", "i4", "i8"])
def test_types_that_are_not_quantized_are_read_as_stored(dtype: str, tmp_path: Path) -> None:
    values = np.arange(-3, 5).astype(dtype)
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", {"v": (values, None)}))
    found = checkpoint.read("v", 1, 6)
    assert found.dtype == values.dtype
    assert found.tolist() == values[1:6].tolist()


def test_bfloat16_is_read_as_stored(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0, 3.0, 0.0], ml_dtypes.bfloat16)
    stored = values.view(np.uint8)
    path = write(tmp_path / "m.gguf", {"v": (stored, GGMLQuantizationType.BF16)})
    found = GgufCheckpoint(path).read("v")
    assert found.dtype == ml_dtypes.bfloat16
    assert found.view(np.uint16).tolist() == values.view(np.uint16).tolist()


def test_large_ranges_are_read_in_steps(tmp_path: Path) -> None:
    stored = gguf.quantize(RNG.standard_normal((2, 300_032), np.float32), GGMLQuantizationType.Q8_0)
    path = write(tmp_path / "m.gguf", {"w": (stored, GGMLQuantizationType.Q8_0)})
    found = GgufCheckpoint(path).read("w", 5)
    expected = gguf.dequantize(stored, GGMLQuantizationType.Q8_0).reshape(-1)
    assert np.array_equal(found, expected[5:])


def test_metadata_of_every_type(tmp_path: Path) -> None:
    T = gguf.GGUFValueType
    path = write(
        tmp_path / "m.gguf",
        {},
        flag=(True, T.BOOL),
        count=(2**63, T.UINT64),
        negative=(-5, T.INT32),
        half=(0.5, T.FLOAT32),
        text=("Grüße", T.STRING),
        numbers=([1, 2, 300], T.ARRAY, T.INT32),
        words=(["a", "", "ü"], T.ARRAY, T.STRING),
    )
    metadata = GgufCheckpoint(path).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["test.flag"] is True
    assert metadata["test.count"] == 2**63
    assert metadata["test.negative"] == -5
    assert metadata["test.half"] == 0.5
    assert metadata["test.text"] == "Grüße"
    assert metadata["test.numbers"].tolist() == [1, 2, 300]
    assert metadata["test.words"] == ["a", "", "ü"]


def test_missing_tensors_and_ranges_are_refused(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", {"a": (VALUES[0, :6], None)}))
    for method in (checkpoint.info, checkpoint.read):
        with pytest.raises(CheckpointError, match="no tensor 'z'"):
            method("z")
    for begin, end in [(-1, 2), (3, 2), (0, 7)]:
        with pytest.raises(CheckpointError, match="has 6 elements"):
            checkpoint.read("a", begin, end)


def test_a_file_that_shrinks_while_it_is_used_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": (VALUES, None)})
    checkpoint = GgufCheckpoint(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="file ends inside tensor 'a'"):
        checkpoint.read("a")


# --- headers by hand -------------------------------------------------------------------------


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def pair(key: bytes, type_: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_) + value


def entry(name: bytes, axes: list[int], type_: int, offset: int) -> bytes:
    return (
        string(name)
        + struct.pack("<I", len(axes))
        + struct.pack(f"<{len(axes)}Q", *axes)
        + struct.pack("<IQ", type_, offset)
    )


def file_of(
    entries: list[bytes],
    pairs: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    pairs = pairs or []
    tensor_count, pair_count = counts or (len(entries), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, pair_count)
    head += b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % 32) + data


def test_a_file_made_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    scalar = entry(b"scalar", [], 0, 32)
    empty = entry(b"empty", [0, 5], 0, 64)
    matrix = entry(b"m", [2, 3], 24, 0)
    data = bytes(range(6)) + bytes(26) + struct.pack("<f", 2.5)
    path.write_bytes(file_of([scalar, empty, matrix], data=data, version=2))
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.version == 2
    assert checkpoint.info("m").shape == (3, 2)
    assert checkpoint.read("m").tolist() == [0, 1, 2, 3, 4, 5]
    assert checkpoint.read("scalar").tolist() == [2.5]
    assert checkpoint.read("empty").size == 0


HUGE = 2**64 - 1
F32 = entry(b"t", [4], 0, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "0 are left at byte 0", id="empty"),
        pytest.param(b"GGUF\3\0", "2 are left", id="cut in the version"),
        pytest.param(b"GGML" + bytes(40), "begins with 47 47 4d 4c", id="magic"),
        pytest.param(file_of([], version=1), "version 1 is not supported", id="version 1"),
        pytest.param(file_of([], version=4), "version 4 is not supported", id="version 4"),
        pytest.param(file_of([], version=0x03000000), "big-endian", id="big-endian"),
        pytest.param(file_of([], counts=(HUGE, 0)), "no room for", id="tensors"),
        pytest.param(file_of([], counts=(0, HUGE)), "no room for", id="keys"),
        pytest.param(
            file_of([], [struct.pack("<Q", HUGE)], counts=(0, 1)), "header", id="long key"
        ),
        pytest.param(file_of([], [pair(b"k", 8, struct.pack("<Q", HUGE))]), "header", id="text"),
        pytest.param(file_of([], [pair(b"k", 13, b"")]), "unknown type 13", id="type of a value"),
        pytest.param(
            file_of([], [pair(b"k", 9, struct.pack("<IQ", 0, HUGE))]), "header", id="many bytes"
        ),
        pytest.param(
            file_of([], [pair(b"k", 9, struct.pack("<IQ", 8, HUGE))]), "no room", id="many texts"
        ),
        pytest.param(
            file_of([], [pair(b"k", 9, struct.pack("<IQ", 9, 1) * 100)]), "nested", id="nesting"
        ),
        pytest.param(file_of([], [pair(b"k", 0, b"\1")] * 2), "'k' appears twice", id="key twice"),
        pytest.param(file_of([], [pair(b"\xff", 0, b"\1")]), "not UTF-8", id="key not UTF-8"),
        pytest.param(
            file_of([F32], [pair(b"general.alignment", 4, struct.pack("<I", 0))], bytes(16)),
            "general.alignment is 0",
            id="alignment 0",
        ),
        pytest.param(
            file_of([F32], [pair(b"general.alignment", 4, struct.pack("<I", 48))], bytes(16)),
            "general.alignment is 48",
            id="alignment 48",
        ),
        pytest.param(
            file_of([F32], [pair(b"general.alignment", 8, string(b"32"))], bytes(16)),
            "general.alignment is '32'",
            id="alignment as text",
        ),
        pytest.param(file_of([entry(b"t", [1] * 5, 0, 0)], data=bytes(4)), "5 axes", id="axes"),
        pytest.param(file_of([entry(b"t", [4], 4, 0)], data=bytes(99)), "type 4", id="removed"),
        pytest.param(file_of([entry(b"t", [4], 999, 0)], data=bytes(99)), "type 999", id="type"),
        pytest.param(file_of([entry(b"t", [33], 8, 0)], data=bytes(99)), "multiple", id="block"),
        pytest.param(file_of([entry(b"t", [4], 0, 8)], data=bytes(99)), "aligned", id="offset"),
        pytest.param(file_of([F32], data=bytes(15)), "cut off", id="one byte short"),
        pytest.param(file_of([entry(b"t", [4], 0, 2**63)]), "cut off", id="far offset"),
        pytest.param(
            file_of([entry(b"t", [2**62, 2**62], 0, 0)], data=bytes(99)), "cut off", id="huge"
        ),
        pytest.param(
            file_of([F32, entry(b"u", [1], 0, 0)], data=bytes(16)),
            "'t' and 'u' overlap",
            id="overlap",
        ),
        pytest.param(file_of([F32, entry(b"t", [4], 0, 32)], data=bytes(48)), "two", id="twice"),
    ],
)
def test_headers_that_lie_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as raised:
        GgufCheckpoint(path)
    assert raised.value.path == str(path)


def test_a_long_sparse_file_is_not_read_beyond_the_limit_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    array = pair(b"k", 9, struct.pack("<IQ", 0, 2**33))
    path.write_bytes(file_of([], [array]))
    with path.open("r+b") as file:
        file.truncate(2**34)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="header needs"):
            GgufCheckpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    T = gguf.GGUFValueType
    tensors: dict[str, Any] = {
        "q": (gguf.quantize(VALUES[:, :64], GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0),
        "f": (VALUES[0, :7], None),
    }
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write(path, tensors, words=(["a", "bc"], T.ARRAY, T.STRING), n=([1, 2], T.ARRAY, T.INT32))
    return path.read_bytes()


MUTATIONS = st.lists(
    st.tuples(st.floats(0, 0.999), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4
)


@given(mutations=MUTATIONS, kept=st.floats(0, 1), cuts=st.booleans())
def test_damage_is_a_checkpoint_error_or_harmless(
    mutations: list[tuple[float, bytes]],
    kept: float,
    cuts: bool,
    honest: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever is changed, only `CheckpointError` comes out, and no memory is wasted."""
    content = bytearray(honest)
    for place, data in mutations:
        begin = int(place * len(content))
        content[begin : begin + len(data)] = data
    if cuts:
        del content[int(kept * len(content)) :]
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(content)
    try:
        checkpoint = GgufCheckpoint(path)
    except CheckpointError:
        return
    for name in checkpoint.names:
        if checkpoint.info(name).dtype not in WITHOUT_VALUES:
            assert checkpoint.read(name).size == checkpoint.info(name).elements
