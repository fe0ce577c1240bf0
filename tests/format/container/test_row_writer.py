"""Tensors written block by block, in any order, are the tensors that were encoded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ninfer_format import (
    Artifact,
    ArtifactError,
    ArtifactPlan,
    ArtifactWriter,
    Component,
    ResourceSpec,
    RowWriter,
    TensorRecord,
    TensorSpec,
    open_artifact,
    plan_artifact,
)


@pytest.fixture(scope="session")
def all_formats(conformance: Path) -> Any:
    with open_artifact(conformance / "artifacts/all_formats/all_formats.ninfer") as artifact:
        yield artifact


def plan_of(*records: TensorRecord, **arguments: Any) -> ArtifactPlan:
    specs = [
        TensorSpec(r.id, r.shape, r.format, r.layout, r.divisors, r.bitrate_half_bits)
        for r in records
    ]
    return plan_artifact(
        [*specs, ResourceSpec("r", b"x")],
        components={"text": Component({})},
        bindings={},
        **arguments,
    )


def blocks_of(artifact: Artifact, record: TensorRecord) -> list[tuple[int, Any]]:
    """First row and words of blocks that are as small as the layout allows."""
    codec = artifact.codec(record.id)
    size = codec.row_block or 1
    return [
        (first, words_of(artifact, record, first, first + size))
        for first in range(0, codec.rows, size)
    ]


def words_of(artifact: Artifact, record: TensorRecord, begin: int, end: int) -> Any:
    codec, payload = artifact.row_slice_payload(record.id, begin, end)
    return codec.decode_words(payload)


def test_blocks_in_any_order_are_the_tensor(all_formats: Artifact, tmp_path: Path) -> None:
    records = [record for record in all_formats.directory.tensors if record.shape]
    random = np.random.default_rng(1)
    with ArtifactWriter(tmp_path / "m.ninfer", plan_of(*records, max_file_bytes=20_000)) as writer:
        for record in records:
            rows = RowWriter(writer, record.id)
            blocks = blocks_of(all_formats, record)
            written = sum(
                rows.write_rows(blocks[index][1], blocks[index][0])
                for index in random.permutation(len(blocks))
            )
            assert written == record.num_bytes, "shared bytes and padding count once"
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        assert len(artifact.directory.files) > 2
        for record in records:
            found, wanted = artifact.read_object(record.id), all_formats.read_object(record.id)
            assert found.tobytes() == wanted.tobytes(), record.id


def test_threads_write_blocks_of_one_tensor(all_formats: Artifact, tmp_path: Path) -> None:
    records = [
        record
        for record in all_formats.directory.tensors
        if len(blocks_or_none(all_formats, record)) > 1
    ]
    assert {record.format for record in records} >= {"nvfp4", "exl3_mul1", "q4_g64_fp16"}
    with ArtifactWriter(tmp_path / "m.ninfer", plan_of(*records)) as writer:
        with ThreadPoolExecutor(8) as pool:
            tasks = []
            for record in records:
                rows = RowWriter(writer, record.id)
                tasks += [
                    pool.submit(rows.write_rows, words, first)
                    for first, words in blocks_of(all_formats, record)
                ]
        for task in tasks:
            task.result()
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        for record in records:
            found, wanted = artifact.read_object(record.id), all_formats.read_object(record.id)
            assert found.tobytes() == wanted.tobytes(), record.id


def blocks_or_none(artifact: Artifact, record: TensorRecord) -> Sequence[Any]:
    return blocks_of(artifact, record) if record.shape else ()


def test_elements_of_direct_formats_are_written_at_any_place(tmp_path: Path) -> None:
    spec = TensorRecord("w", (3, 5, 2), "fp32", "contiguous_le_v1", 0, 120)
    scalar = TensorRecord("s", (), "bf16", "contiguous_le_v1", 0, 2)
    words = np.arange(30, dtype=np.uint32)
    with ArtifactWriter(tmp_path / "m.ninfer", plan_of(spec, scalar)) as writer:
        rows = RowWriter(writer, "w")
        assert rows.write_elements(words[7:30].reshape(23, 1), 7) == 92
        assert rows.write_elements(words[:7], 0) == 28
        assert RowWriter(writer, "s").write_elements(np.array([5], np.uint16), 0) == 2
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        assert np.array_equal(artifact.words("w"), words.reshape(3, 5, 2))
        assert artifact.words("s") == 5


def record_of(artifact: Artifact, object_id: str) -> TensorRecord:
    record = artifact.record(object_id)
    assert isinstance(record, TensorRecord)
    return record


def attempt(plan: ArtifactPlan, folder: Path, action: Callable[[ArtifactWriter], object]) -> None:
    """Do something with a writer that is given up afterwards."""

    class GivenUpError(Exception):
        pass

    def give_up() -> None:
        with ArtifactWriter(folder / "m.ninfer", plan) as writer:
            action(writer)
            raise GivenUpError

    with pytest.raises(GivenUpError):
        give_up()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("object_id", "plane"), [("w.nvfp4.256x128.d2", "divisors"), ("w.exl3.hb5.s2", "suh")]
)
def test_what_blocks_of_a_matrix_share_must_agree(
    object_id: str, plane: str, all_formats: Artifact, tmp_path: Path
) -> None:
    # Both matrices of the stack become one of 256 rows with something to share.
    record = replace(record_of(all_formats, object_id), divisors=1)
    (first, words), (second, other) = blocks_of(all_formats, record_of(all_formats, object_id))
    assert not np.array_equal(getattr(words, plane), getattr(other, plane))

    def write_both(writer: ArtifactWriter) -> None:
        rows = RowWriter(writer, object_id)
        rows.write_rows(words, first)
        with pytest.raises(ArtifactError, match="differ in what they share") as raised:
            rows.write_rows(other, second)
        assert raised.value.category == "writer"
        assert raised.value.object_id == object_id
        agreeing = replace(other, **{plane: getattr(words, plane)})
        rows.write_rows(agreeing, second)

    attempt(plan_of(record), tmp_path, write_both)

    def write_from_one_array(writer: ArtifactWriter) -> None:
        rows = RowWriter(writer, object_id)
        array = getattr(words, plane).copy()
        rows.write_rows(replace(words, **{plane: array}), first)
        array[...] = getattr(other, plane)
        with pytest.raises(ArtifactError, match="differ in what they share"):
            rows.write_rows(replace(other, **{plane: array}), second)

    attempt(plan_of(record), tmp_path, write_from_one_array)


def test_blocks_are_written_once_and_whole(all_formats: Artifact, tmp_path: Path) -> None:
    stack = record_of(all_formats, "w.nvfp4.256x128.d2")
    matrix = record_of(all_formats, "w.q5.5x256")
    whole_stack = all_formats.words(stack.id)
    rows_of_stack = {field.name: getattr(whole_stack, field.name) for field in fields(whole_stack)}

    def check(writer: ArtifactWriter) -> None:
        rows = RowWriter(writer, matrix.id)
        rows.write_rows(words_of(all_formats, matrix, 1, 3), 1)
        stacked = RowWriter(writer, stack.id)
        halves = {name: words[: len(words) // 2] for name, words in rows_of_stack.items()}
        for action, category in [
            (lambda: stacked.write_rows(type(whole_stack)(**halves), 64), "codec"),
            (lambda: stacked.write_rows(whole_stack, 0), "codec"),
            (lambda: rows.write_rows(words_of(all_formats, matrix, 3, 5), 4), "codec"),
            (lambda: rows.write_rows(words_of(all_formats, matrix, 3, 5), -1), "codec"),
            (lambda: rows.write_elements(np.zeros(3, np.uint16), 0), "codec"),
            (lambda: rows.write_rows(words_of(all_formats, matrix, 2, 4), 2), "writer"),
        ]:
            with pytest.raises(ArtifactError) as raised:
                action()
            assert raised.value.category == category

    attempt(plan_of(matrix, stack), tmp_path, check)


@pytest.mark.parametrize("object_id", ["none", "r"])
def test_only_tensors_of_the_plan_have_rows(
    object_id: str, all_formats: Artifact, tmp_path: Path
) -> None:
    def check(writer: ArtifactWriter) -> None:
        with pytest.raises(ArtifactError) as raised:
            RowWriter(writer, object_id)
        assert raised.value.category == "writer"
        assert raised.value.object_id == object_id

    attempt(plan_of(record_of(all_formats, "w.q5.5x256")), tmp_path, check)


def test_words_of_another_type_are_refused(tmp_path: Path) -> None:
    record = TensorRecord("w", (4,), "bf16", "contiguous_le_v1", 0, 8)

    def check(writer: ArtifactWriter) -> None:
        rows = RowWriter(writer, "w")
        wrong: list[NDArray[Any]] = [np.zeros(4, np.float32), np.zeros(4, np.int16)]
        for words in wrong:
            for write in (rows.write_elements, rows.write_rows):
                with pytest.raises((ArtifactError, TypeError)):
                    write(words, 0)

    attempt(plan_of(record), tmp_path, check)
