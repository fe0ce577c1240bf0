"""Safetensors checkpoints: honest ones, damaged ones and ones made to mislead."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import CheckpointError, SafetensorsCheckpoint


def file_of(header: Mapping[str, Any] | bytes, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    names = {np.dtype(np.float32): "F32", np.dtype(ml_dtypes.bfloat16): "BF16"}
    header, data = {}, b""
    for name, values in tensors.items():
        begin = len(data)
        data += values.tobytes()
        header[name] = tensor(names[values.dtype], list(values.shape), begin, len(data))
    path.write_bytes(file_of(header, data))


A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16)


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"b": B, "a": A})
    (tmp_path / "other.safetensors").write_bytes(b"not looked at")
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert checkpoint.names == ("a", "b")
    assert checkpoint.config == {"model_type": "x"}
    assert checkpoint.total_bytes == A.nbytes + B.nbytes
    assert "a" in checkpoint
    assert "c" not in checkpoint
    info = checkpoint.info("a")
    assert (info.dtype, info.shape, info.num_bytes, info.elements) == ("F32", (2, 3), 24, 6)
    assert info.file == tmp_path / "model.safetensors"
    assert checkpoint.read("a").tolist() == A.reshape(-1).tolist()
    assert checkpoint.read("a", 2, 5).tolist() == [2, 3, 4]
    assert checkpoint.read("a", 3, 3).tolist() == []
    assert checkpoint.read("b").dtype == ml_dtypes.bfloat16
    assert checkpoint.read("b").view(np.uint16).tolist() == B.view(np.uint16).tolist()
    assert checkpoint.read("b", 1).tolist() == [-2.0, 3.0]


def write_indexed(folder: Path) -> dict[str, Any]:
    write(folder / "one.safetensors", {"a": A})
    write(folder / "two.safetensors", {"b": B})
    index = {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_a_folder_with_an_index(tmp_path: Path) -> None:
    write_indexed(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        checkpoint = SafetensorsCheckpoint(path)
        assert checkpoint.names == ("a", "b")
        assert checkpoint.config == {}
        assert checkpoint.info("b").file == tmp_path / "two.safetensors"


def test_a_folder_with_shards_but_no_index(tmp_path: Path) -> None:
    write_indexed(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert SafetensorsCheckpoint(tmp_path).names == ("a", "b")
    assert SafetensorsCheckpoint(tmp_path / "one.safetensors").names == ("a",)


def test_a_folder_without_tensors_has_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert checkpoint.names == ()
    assert checkpoint.total_bytes == 0


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("BOOL", "bool"),
        ("U8", "u1"),
        ("I8", "i1"),
        ("I16", "<i2"),
        ("I32", "<i4"),
        ("I64", "<i8"),
        ("F16", "<f2"),
        ("F64", "<f8"),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
    ],
)
def test_types(name: str, dtype: Any, tmp_path: Path) -> None:
    values = np.array([0, 1, 1, 0]).astype(dtype)
    header = {"x": tensor(name, [4], 0, values.nbytes)}
    (tmp_path / "x.safetensors").write_bytes(file_of(header, values.tobytes()))
    found = SafetensorsCheckpoint(tmp_path).read("x")
    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()


def test_empty_tensors_scalars_and_padded_headers_are_legal(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "empty": tensor("F32", [0, 5], 4, 4),
        "scalar": tensor("F32", [], 0, 4),
        "last": tensor("F32", [0], 4, 4),
    }
    text = json.dumps(header).encode() + b"     "
    (tmp_path / "x.safetensors").write_bytes(file_of(text, struct.pack("<f", 2.5)))
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert checkpoint.names == ("empty", "last", "scalar")
    assert checkpoint.read("scalar").tolist() == [2.5]
    assert checkpoint.read("empty").size == 0


def test_the_tiny_model_is_read_lazily_and_exactly(data: Path) -> None:
    folder = data / "tiny-model/checkpoint"
    checkpoint = SafetensorsCheckpoint(folder)
    content = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    assert set(checkpoint.names) == set(header)
    assert checkpoint.total_bytes == len(content) - 8 - length
    assert checkpoint.config["model_type"]
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        info = checkpoint.info(name)
        assert (info.dtype, list(info.shape)) == (entry["dtype"], entry["shape"])
        assert checkpoint.read(name).tobytes() == content[begin:end]


# --- damage and attacks ----------------------------------------------------------------------


def refused(folder: Path, content: bytes) -> CheckpointError:
    (folder / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        SafetensorsCheckpoint(folder)
    assert raised.value.path == str(folder / "x.safetensors")
    return raised.value


@pytest.mark.parametrize(
    ("k", "v"),
    [
        pytest.param((0, 64), (0, 64), id="the same bytes"),
        pytest.param((0, 64), (32, 96), id="partly"),
        pytest.param((0, 128), (32, 64), id="inside"),
    ],
)
def test_overlapping_tensors_are_both_named(
    k: tuple[int, int], v: tuple[int, int], tmp_path: Path
) -> None:
    header = {
        "k": tensor("U8", [k[1] - k[0]], *k),
        "v": tensor("U8", [v[1] - v[0]], *v),
    }
    error = refused(tmp_path, file_of(header, bytes(max(k[1], v[1]))))
    assert "'k' and 'v' overlap" in str(error)
    assert error.tensors == ("k", "v")


def test_gaps_are_refused(tmp_path: Path) -> None:
    header = {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 5, 9)}
    assert "1 bytes before tensor 'b'" in str(refused(tmp_path, file_of(header, bytes(9))))
    header = {"a": tensor("U8", [4], 2, 6)}
    assert "2 bytes before tensor 'a'" in str(refused(tmp_path, file_of(header, bytes(6))))


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    header = {"a": tensor("U8", [4], 0, 4)}
    assert "1 bytes after" in str(refused(tmp_path, file_of(header, bytes(5))))
    assert "3 bytes after" in str(refused(tmp_path, file_of({}, bytes(3))))


def test_truncated_files_name_the_tensor(tmp_path: Path) -> None:
    header = {"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 4, 8)}
    error = refused(tmp_path, file_of(header, bytes(7)))
    assert "file ends inside tensor 'b'" in str(error)
    assert error.hint is not None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\1\2\3", id="shorter than the length"),
        pytest.param(file_of(b"{}", b"", length=3), id="length past the end"),
        pytest.param(file_of(b"{}", b"", length=2**64 - 1), id="length near 2^64"),
        pytest.param(file_of(b"{}", b"", length=2**63), id="length that could be negative"),
        pytest.param(file_of(b"{}", b"", length=0), id="no header"),
        pytest.param(file_of(b"{}", b"", length=1), id="header cut"),
        pytest.param(file_of(b"[]", b""), id="array"),
        pytest.param(file_of(b'{"a":', b""), id="grammar"),
        pytest.param(file_of(b"\xff\xfe{}", b""), id="not UTF-8"),
        pytest.param(file_of(b"[" * 100_000, b""), id="deep"),
        pytest.param(file_of({"__metadata__": 3}, b""), id="metadata"),
    ],
)
def test_headers_that_lie_are_refused(content: bytes, tmp_path: Path) -> None:
    refused(tmp_path, content)


def test_a_header_that_would_fill_the_memory_is_not_parsed(tmp_path: Path) -> None:
    error = refused(tmp_path, file_of(b"[" + b"[]," * 1_000_000 + b"[]]", b""))
    assert "would take too much memory" in str(error)


def test_a_name_that_appears_twice_is_refused(tmp_path: Path) -> None:
    entry = json.dumps(tensor("U8", [2], 0, 2)).encode()
    error = refused(tmp_path, file_of(b'{"a":' + entry + b',"a":' + entry + b"}", bytes(2)))
    assert "'a' appears twice" in str(error)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        pytest.param(tensor("F4", [4], 0, 4), "unknown type", id="unknown type"),
        pytest.param({**tensor("", [1], 0, 4), "dtype": ["F32"]}, "unknown type", id="list"),
        pytest.param(tensor("F32", [2], 0, 4), r"has 4 bytes \(expected 8\)", id="too short"),
        pytest.param(tensor("U8", [2**40, 2**40], 0, 4), "expected", id="huge shape"),
        pytest.param(tensor("U8", [4, 2**64], 0, 4), "64 counts", id="beyond 64 bit"),
        pytest.param(tensor("U8", [4, *[1] * 64], 0, 4), "64 counts", id="too many axes"),
        pytest.param(tensor("U8", [-2, -2], 0, 4), "64 counts", id="negative"),
        pytest.param(tensor("U8", [True, 4], 0, 4), "64 counts", id="boolean"),
        pytest.param({**tensor("U8", [4], 0, 4), "shape": [4.0]}, "64 counts", id="float"),
        pytest.param(tensor("U8", [4], 4, 0), "data_offsets", id="reversed"),
        pytest.param({**tensor("U8", [4], 0, 4), "data_offsets": [4]}, "data_offsets", id="one"),
        pytest.param({**tensor("U8", [4], 0, 4), "data_offsets": 4}, "data_offsets", id="number"),
        pytest.param({**tensor("U8", [4], 0, 4), "x": 1}, "exactly dtype", id="extra member"),
        pytest.param({"dtype": "U8", "shape": [4]}, "exactly dtype", id="missing member"),
        pytest.param([], "exactly dtype", id="array"),
    ],
)
def test_entries_that_do_not_fit_name_the_tensor(entry: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(file_of({"t": entry}, bytes(4)))
    with pytest.raises(CheckpointError, match=f"tensor 't'.*{message}") as raised:
        SafetensorsCheckpoint(tmp_path)
    assert raised.value.tensors == ("t",)


def test_missing_tensors_and_ranges_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": A})
    checkpoint = SafetensorsCheckpoint(tmp_path)
    for method in (checkpoint.info, checkpoint.read):
        with pytest.raises(CheckpointError, match="no tensor 'z'") as raised:
            method("z")
        assert raised.value.tensors == ("z",)
    for begin, end in [(-1, 2), (3, 2), (0, 7)]:
        with pytest.raises(CheckpointError, match="has 6 elements"):
            checkpoint.read("a", begin, end)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", {"a": A})
    write(tmp_path / "two.safetensors", {"a": A, "b": B})
    with pytest.raises(CheckpointError, match=r"'a' is in one\.safetensors as well") as raised:
        SafetensorsCheckpoint(tmp_path)
    assert raised.value.path == str(tmp_path / "two.safetensors")


def test_absent_shards_are_all_named_with_their_tensors(tmp_path: Path) -> None:
    write_indexed(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"one\.safetensors, two\.safetensors") as raised:
        SafetensorsCheckpoint(tmp_path)
    assert raised.value.tensors == ("a", "b")


@pytest.mark.parametrize(
    ("change", "tensors"),
    [
        pytest.param({"c": "one.safetensors"}, ("c",), id="listed but not stored"),
        pytest.param({"a": "two.safetensors"}, ("a",), id="in another shard"),
    ],
)
def test_an_index_that_disagrees_is_refused(
    change: dict[str, str], tensors: tuple[str, ...], tmp_path: Path
) -> None:
    index = write_indexed(tmp_path)
    index["weight_map"] = {"a": "one.safetensors", "b": "two.safetensors"} | change
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    if "one.safetensors" not in index["weight_map"].values():
        (tmp_path / "one.safetensors").unlink()
    with pytest.raises(CheckpointError, match="disagree") as raised:
        SafetensorsCheckpoint(tmp_path)
    assert raised.value.tensors == tensors


def test_stored_but_unlisted_tensors_are_refused(tmp_path: Path) -> None:
    write_indexed(tmp_path)
    write(tmp_path / "two.safetensors", {"b": B, "extra": A})
    with pytest.raises(CheckpointError, match="'extra'"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "../evil.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": "x", "a": "y"}}',
    ],
)
def test_an_index_that_is_no_index_is_refused(index: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError) as raised:
        SafetensorsCheckpoint(tmp_path)
    assert raised.value.path == str(tmp_path / "model.safetensors.index.json")


def test_a_file_that_shrinks_while_it_is_used_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {"a": A})
    checkpoint = SafetensorsCheckpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="file ends inside tensor 'a'"):
        checkpoint.read("a")


def test_a_missing_path_is_the_operating_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SafetensorsCheckpoint(tmp_path / "none")
