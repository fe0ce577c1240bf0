"""Parameters read by rows, by columns and from random parts, in one file and in many."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ninfer_format import Artifact, ArtifactError, TensorRecord, open_artifact
from ninfer_format.container import logical_parameter, stored_tensor

WriteFiles = Callable[..., Path]
Array = NDArray[Any]


@pytest.fixture(scope="session")
def all_formats(conformance: Path) -> Iterator[Artifact]:
    with open_artifact(conformance / "artifacts/all_formats/all_formats.ninfer") as artifact:
        yield artifact


@pytest.fixture(scope="session", params=[None, 700], ids=["one file", "many files"])
def artifact(
    request: pytest.FixtureRequest,
    all_formats: Artifact,
    write_files: WriteFiles,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Artifact]:
    """Objects of every format, in one file or across many; each is a parameter of its own name."""
    payload = all_formats.read_range(0, all_formats.payload_bytes)
    step = request.param or len(payload)
    segments = [payload[at : at + step] for at in range(0, len(payload), step)]
    bindings = {record.id: {"object": record.id} for record in all_formats.directory.tensors}
    directory = all_formats.directory.to_json() | {"bindings": bindings, "uses": []}
    path = write_files(tmp_path_factory.mktemp("all_formats"), directory, *segments)
    with open_artifact(path) as opened:
        yield opened


def same(found: Array, wanted: Array) -> bool:
    """Whether two arrays agree in every bit, whatever NaN they hold."""
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    return found.tobytes() == wanted.tobytes()


def test_objects_decode_the_same_wherever_files_are_cut(
    artifact: Artifact, all_formats: Artifact
) -> None:
    for record in all_formats.directory.tensors:
        assert same(artifact.decode_object(record.id), all_formats.decode_object(record.id))
        assert same(artifact.read_object(record.id), all_formats.read_object(record.id))
        artifact.verify_object(record.id)


def test_rows_of_every_format(artifact: Artifact, all_formats: Artifact) -> None:
    random = np.random.default_rng(3)
    for record in all_formats.directory.tensors:
        if not record.shape:
            continue
        whole, count = all_formats.decode_object(record.id), record.shape[0]
        for begin, end in [(0, count), (0, 0), *random.integers(0, count + 1, (8, 2)).tolist()]:
            interval = min(begin, end), max(begin, end)
            found = artifact.read_rows(record.id, interval)
            assert same(found, whole[slice(*interval)]), (record.id, interval)
        rows = random.integers(0, count, 9)
        assert same(artifact.read_rows(record.id, rows), whole[rows]), (record.id, rows)
    assert artifact.read_rows("w.interleaved", np.array([], np.int64)).shape == (0, 4)


def test_columns_of_every_format(artifact: Artifact, all_formats: Artifact) -> None:
    random = np.random.default_rng(4)
    for record in all_formats.directory.tensors:
        if len(record.shape) != 2:
            continue
        whole, width = all_formats.decode_object(record.id), record.shape[1]
        for begin, end in [(0, width), (1, 1), *random.integers(0, width + 1, (8, 2)).tolist()]:
            columns = min(begin, end), max(begin, end)
            found = artifact.read_columns(record.id, *columns)
            assert same(found, whole[:, slice(*columns)]), (record.id, columns)


def test_slices_of_every_format_stand_alone(artifact: Artifact, all_formats: Artifact) -> None:
    for record in all_formats.directory.tensors:
        whole = all_formats.decode_object(record.id)
        codec = artifact.codec(record.id)
        if codec.row_block is None:
            with pytest.raises(ArtifactError, match="scalar has no rows"):
                artifact.row_slice_payload(record.id, 0, 1)
            continue
        matrix = codec.rows // codec.divisors
        for begin in range(0, codec.rows, max(codec.row_block, matrix // 2)):
            end = begin + codec.row_block
            piece, payload = artifact.row_slice_payload(record.id, begin, end)
            assert piece.shape == (codec.row_block, *record.shape[1:])
            piece.verify(payload)
            assert same(piece.decode(payload), whole[begin:end]), (record.id, begin)


def test_slices_that_cannot_be_cut_are_codec_errors(artifact: Artifact) -> None:
    for object_id, begin, end in [
        ("w.nvfp4.256x128.d2", 0, 64),
        ("w.nvfp4.256x128.d2", 0, 256),
        ("w.exl3.hb5.s2", 64, 192),
        ("w.q4.2x130", 1, 1),
        ("w.q4.2x130", 0, 3),
        ("w.q4.2x130", -1, 1),
    ]:
        with pytest.raises(ArtifactError) as raised:
            artifact.row_slice_payload(object_id, begin, end)
        assert raised.value.category == "codec"
        assert raised.value.object_id == object_id


@pytest.mark.parametrize(
    ("read", "category"),
    [
        (lambda a: a.read_rows("w.interleaved", (0, 9)), "range"),
        (lambda a: a.read_rows("w.interleaved", (-1, 2)), "range"),
        (lambda a: a.read_rows("w.interleaved", (3, 2)), "range"),
        (lambda a: a.read_rows("w.interleaved", np.array([0, 8])), "range"),
        (lambda a: a.read_rows("w.interleaved", np.array([0, -1])), "range"),
        (lambda a: a.read_rows("w.bf16.scalar", (0, 1)), "range"),
        (lambda a: a.read_rows("w.interleaved", (0, 1), (8, 5)), "reference"),
        (lambda a: a.read_rows("none", (0, 1)), "reference"),
        (lambda a: a.read_columns("w.interleaved", 0, 5), "range"),
        (lambda a: a.read_columns("w.interleaved", 2, 1), "range"),
        (lambda a: a.read_columns("w.fp32.special", 0, 1), "reference"),
        (lambda a: a.read_columns("w.bf16.scalar", 0, 1), "reference"),
    ],
)
def test_what_is_not_there_is_refused(
    artifact: Artifact, read: Callable[[Artifact], Array], category: str
) -> None:
    with pytest.raises(ArtifactError) as raised:
        read(artifact)
    assert raised.value.category == category
    assert str(artifact.path) in str(raised.value)


def test_row_indices_are_integers(artifact: Artifact) -> None:
    for rows in (np.array([0.0]), np.array([[0]]), np.array([True])):
        with pytest.raises(TypeError, match="rows must be integers"):
            artifact.read_rows("w.interleaved", rows)


# --- random parts -------------------------------------------------------------------------------


@settings(max_examples=60)
@given(choices=st.data())
def test_parts_cut_anywhere_are_the_whole(
    choices: st.DataObject, all_formats: Artifact, write_files: WriteFiles
) -> None:
    matrices = [r for r in all_formats.directory.tensors if len(r.shape) == 2]
    record = choices.draw(st.sampled_from(matrices), label="object")
    parts = cut(choices, record)
    whole = all_formats.decode_object(record.id)
    with rebound(choices, all_formats, parts, write_files) as artifact:
        assert artifact.parameter_elements("p") == whole.size
        assert same(artifact.decode_parameter("p", record.shape), whole)
        assert same(artifact.decode_parameter("p"), whole.reshape(-1))
        first, last = sorted(choices.draw(st.tuples(*[st.integers(0, record.shape[0])] * 2)))
        assert same(artifact.read_rows("p", (first, last), record.shape), whole[first:last])
        first, last = sorted(choices.draw(st.tuples(*[st.integers(0, record.shape[1])] * 2)))
        assert same(artifact.read_columns("p", first, last, record.shape), whole[:, first:last])
        flat = artifact.read_rows("p", (first, last))
        assert same(flat, whole.reshape(-1)[first:last])


def cut(choices: st.DataObject, record: TensorRecord) -> list[tuple[str, int, int]]:
    """Consecutive parts of an object, cut between rows or anywhere."""
    unit = choices.draw(st.sampled_from([record.shape[1], 1]), label="unit")
    cuts = choices.draw(st.lists(st.integers(0, record.elements // unit), max_size=5), label="cuts")
    edges = sorted({0, record.elements, *(unit * cut for cut in cuts)})
    return [(record.id, begin, end) for begin, end in pairwise(edges)]


def rebound(
    choices: st.DataObject,
    artifact: Artifact,
    parts: list[tuple[str, int, int]],
    write_files: WriteFiles,
) -> Artifact:
    """A copy that has one parameter ``p`` of these parts, in files of some odd length."""
    payload = artifact.read_range(0, artifact.payload_bytes)
    step = choices.draw(st.integers(1500, 9000), label="segment bytes")
    segments = [payload[at : at + step] for at in range(0, len(payload), step)]
    binding = {"parts": [{"object": i, "range": [begin, end]} for i, begin, end in parts]}
    directory = artifact.directory.to_json() | {"bindings": {"p": binding}, "uses": []}
    with tempfile.TemporaryDirectory() as folder:
        copy = open_artifact(write_files(Path(folder), directory, *segments))
        copy.read_range(0, len(payload))  # Opens all files, which may disappear then.
    return copy


@settings(max_examples=60)
@given(choices=st.data())
def test_a_parameter_of_rows_of_several_objects(
    choices: st.DataObject, all_formats: Artifact, write_files: WriteFiles
) -> None:
    """Rows of objects of one width, in any order and with repeats, with or without a shape."""
    by_width: dict[int, list[TensorRecord]] = {}
    for record in all_formats.directory.tensors:
        if len(record.shape) == 2:
            by_width.setdefault(record.shape[1], []).append(record)
    width = choices.draw(st.sampled_from([130, 128, 256]), label="width")
    parts, values = [], []
    for record in choices.draw(st.lists(st.sampled_from(by_width[width]), min_size=1, max_size=4)):
        first = choices.draw(st.integers(0, record.shape[0] - 1))
        last = choices.draw(st.integers(first + 1, record.shape[0]))
        parts.append((record.id, first * width, last * width))
        values.append(all_formats.decode_object(record.id)[first:last])
    whole = np.concatenate(values)
    rows = np.array(choices.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20)), np.int32)
    begin, end = sorted(choices.draw(st.tuples(*[st.integers(0, width)] * 2)))
    with rebound(choices, all_formats, parts, write_files) as artifact:
        assert same(artifact.decode_parameter("p", whole.shape), whole)
        assert same(artifact.read_rows("p", rows, whole.shape), whole[rows])
        assert same(artifact.read_columns("p", begin, end, whole.shape), whole[:, begin:end])


def test_parts_that_begin_but_do_not_end_with_rows(
    all_formats: Artifact, write_files: WriteFiles, tmp_path: Path
) -> None:
    parts = [("w.interleaved", 0, 7), ("w.interleaved", 12, 17)]
    binding = {"parts": [{"object": i, "range": [begin, end]} for i, begin, end in parts]}
    directory = all_formats.directory.to_json() | {"bindings": {"p": binding}, "uses": []}
    payload = all_formats.read_range(0, all_formats.payload_bytes)
    flat = all_formats.decode_object("w.interleaved").reshape(-1)
    whole = np.concatenate([flat[0:7], flat[12:17]]).reshape(3, 4)
    with open_artifact(write_files(tmp_path, directory, payload)) as artifact:
        assert same(artifact.read_columns("p", 1, 3, (3, 4)), np.ascontiguousarray(whole[:, 1:3]))


def test_small_slices_change_nothing(
    artifact: Artifact, all_formats: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tensor, "SLICE_BYTES", 1)
    monkeypatch.setattr(logical_parameter, "COLUMN_CHUNK_ELEMENTS", 7)
    for record in all_formats.directory.tensors:
        whole = all_formats.decode_object(record.id)
        assert same(artifact.decode_object(record.id), whole)
        if len(record.shape) == 2 and whole.size < 1000:
            reshaped = whole.reshape(-1, 1)
            assert same(artifact.read_columns(record.id, 0, 1, reshaped.shape), reshaped)


# --- memory -------------------------------------------------------------------------------------


def directory_of(parts: list[tuple[int, int]], elements: int) -> dict[str, Any]:
    """One int32 vector, and one parameter of parts of it."""
    record = {"id": "w", "kind": "tensor", "format": "int32", "layout": "contiguous_le_v1"}
    return {
        "components": {"text": {"config": {}}},
        "objects": [record | {"shape": [elements], "offset": 0, "bytes": 4 * elements}],
        "bindings": {"p": {"parts": [{"object": "w", "range": list(part)} for part in parts]}},
        "uses": [],
    }


def test_repeated_elements_need_a_shape_when_they_are_many(
    write_files: WriteFiles, tmp_path: Path
) -> None:
    elements = 2**20
    payload = np.arange(elements, dtype="<i4").tobytes()
    parts = [(0, elements)] * 4
    with open_artifact(write_files(tmp_path, directory_of(parts, elements), payload)) as artifact:
        assert artifact.decode_parameter("p").size == 2**22
    parts.append((elements - 1, elements))
    with open_artifact(write_files(tmp_path, directory_of(parts, elements), payload)) as artifact:
        with pytest.raises(ArtifactError, match="must be asked for with a shape") as raised:
            artifact.decode_parameter("p")
        assert raised.value.category == "reference"
        assert artifact.decode_parameter("p", (2**22 + 1,))[-1] == elements - 1
        assert artifact.read_rows("p", (2**22, 2**22 + 1), (2**22 + 1,)).tolist() == [elements - 1]


def test_many_elements_that_are_not_repeated_need_no_shape(
    write_files: WriteFiles, tmp_path: Path
) -> None:
    elements = 2**22 + 2
    payload = bytes(4 * elements)
    parts = [(elements // 2, elements), (0, elements // 2)]
    with open_artifact(write_files(tmp_path, directory_of(parts, elements), payload)) as artifact:
        assert artifact.decode_parameter("p").size == elements


def test_an_object_across_files_is_not_joined_to_be_decoded(
    write_files: WriteFiles, tmp_path: Path
) -> None:
    shape = (4096, 4096)
    num_bytes = prod(shape) // 2 + prod(shape) // 64 * 2
    directory = directory_of([(0, 1)], prod(shape))
    directory["objects"][0] |= {"format": "q4_g64_fp16", "layout": "row_split_k128_v1"}
    directory["objects"][0] |= {"shape": list(shape), "bytes": num_bytes}
    payload = bytes(num_bytes)
    path = write_files(tmp_path, directory, payload[:5_000_000], payload[5_000_000:])
    with open_artifact(path) as artifact:
        tracemalloc.start()
        try:
            values = artifact.decode_object("w")
            assert tracemalloc.get_traced_memory()[1] < values.nbytes + num_bytes
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            rows = artifact.read_rows("p", (0, 1))
            assert rows.shape == (1,)
            assert tracemalloc.get_traced_memory()[1] < before + 100_000
        finally:
            tracemalloc.stop()
