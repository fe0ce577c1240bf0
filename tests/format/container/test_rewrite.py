"""Payload copied under another directory: the same bytes, cut and extended as asked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_format import (
    Addition,
    Artifact,
    ArtifactError,
    Binding,
    ResourceSpec,
    TensorSpec,
    open_artifact,
)
from ninfer_format.container import rewrite

Split = Callable[..., Path]

COMPLETE = (
    "all_formats/all_formats",
    "minimal/minimal",
    "multipart/multipart",
    "multipart/reserve_growth",
    "multipart/exact_fit",
    "multipart/exact_fit_minus_1",
    "tolerated/spelling",
    "tolerated/gaps",
    "tolerated/odd_segments",
    "tolerated/unknown_encoding_present",
)


@pytest.fixture(params=COMPLETE)
def artifact(request: pytest.FixtureRequest, conformance: Path) -> Any:
    with open_artifact(conformance / "artifacts" / f"{request.param}.ninfer") as opened:
        yield opened


@pytest.fixture
def multipart(conformance: Path) -> Any:
    with open_artifact(conformance / "artifacts/multipart/multipart.ninfer") as opened:
        yield opened


def payload_hash(artifact: Artifact) -> str:
    return hashlib.sha256(artifact.read_range(0, artifact.payload_bytes)).hexdigest()


@pytest.mark.parametrize("room", [4096, 12_288, 10**6])
def test_only_the_cut_and_the_id_change(
    artifact: Artifact, room: int, split: Split, tmp_path: Path
) -> None:
    """`room` is what a file may hold besides the directory."""
    limit = artifact.file_bytes - artifact.payload_bytes + room
    with open_artifact(split(artifact, tmp_path / "new.ninfer", limit)) as new:
        assert payload_hash(new) == payload_hash(artifact)
        assert replace(new.directory, files=()) == replace(artifact.directory, files=())
        assert new.artifact_id != artifact.artifact_id
        sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
        assert max(sizes) <= limit
        assert len(sizes) == len(new.directory.files)
        assert sum(sizes) == new.file_bytes
        # And back again, as upstream's writer would have cut it.
        once = split(new, tmp_path / "once.ninfer", 10**9)
    with open_artifact(once) as one_file:
        assert len(one_file.directory.files) == 1
        assert payload_hash(one_file) == payload_hash(artifact)


def test_cutting_again_as_before_gives_the_same_files(
    multipart: Artifact, split: Split, tmp_path: Path
) -> None:
    """The multipart artifact of another writer, through one file and back to its own limit."""
    once = split(multipart, tmp_path / "once.ninfer", 10**9)
    with open_artifact(once) as one_file:
        again = split(
            one_file,
            tmp_path / "again" / "multipart.ninfer",
            16_384,
            artifact_id=multipart.artifact_id,
        )
    with open_artifact(again) as cut:
        assert cut.directory == multipart.directory
    for file in multipart.directory.files:
        name = file.path or "multipart.ninfer"
        assert again.with_name(name).read_bytes() == multipart.path.with_name(name).read_bytes()


def test_gaps_and_the_tail_are_kept(conformance: Path, split: Split, tmp_path: Path) -> None:
    with open_artifact(conformance / "artifacts/tolerated/gaps.ninfer") as artifact:
        last = artifact.directory.objects[-1]
        assert last.end < artifact.payload_bytes
        whole = artifact.read_range(0, artifact.payload_bytes)
        with open_artifact(split(artifact, tmp_path / "kept.ninfer", 10**9)) as kept:
            assert kept.read_range(0, kept.payload_bytes) == whole
        shorter = split(artifact, tmp_path / "cut.ninfer", 10**9, kept_bytes=last.end)
        with open_artifact(shorter) as cut:
            assert cut.read_range(0, cut.payload_bytes) == whole[: last.end]


def test_additions_follow_at_their_alignment(
    multipart: Artifact, split: Split, tmp_path: Path
) -> None:
    kept = multipart.payload_bytes
    source = next(r for r in multipart.directory.tensors if r.format == "q5_g64_fp16")
    spec = TensorSpec("copy", source.shape, source.format, source.layout)
    additions = [
        Addition(ResourceSpec("note", b"hello")),
        Addition(spec, multipart.payload, source.offset),
        Addition(ResourceSpec("end", b"!")),
    ]
    for limit in (10**9, 16_384):
        out = tmp_path / f"{limit}" / "new.ninfer"
        bindings = {**multipart.directory.bindings, "text/copy": Binding(object="copy")}
        split(multipart, out, limit, additions=additions, bindings=bindings)
        with open_artifact(out) as new:
            note, copy, end = new.directory.objects[-3:]
            assert new.directory.objects[:-3] == multipart.directory.objects
            assert (note.offset, note.end) == (kept, kept + 5)
            assert copy.offset == -(-note.end // 256) * 256
            assert end.offset == copy.end
            assert new.payload_bytes == end.end
            assert new.read_range(0, kept) == multipart.read_range(0, kept)
            assert new.read_range(note.end, copy.offset - note.end) == bytes(copy.offset - note.end)
            assert new.read_object("note").tobytes() == b"hello"
            assert new.read_object("end").tobytes() == b"!"
            wanted = multipart.decode_object(source.id)
            assert new.decode_parameter("text/copy").tobytes() == wanted.tobytes()


def test_stacks_and_bit_rates_survive_being_added(
    conformance: Path, split: Split, tmp_path: Path
) -> None:
    path = conformance / "artifacts/all_formats/all_formats.ninfer"
    with open_artifact(path) as artifact:
        additions = [
            Addition(
                TensorSpec(
                    f"copy of {record.id}",
                    record.shape,
                    record.format,
                    record.layout,
                    record.divisors,
                    record.bitrate_half_bits,
                ),
                artifact.payload,
                record.offset,
            )
            for record in artifact.directory.tensors
        ]
        with open_artifact(split(artifact, tmp_path / "m", 10**9, additions=additions)) as new:
            for record in artifact.directory.tensors:
                found = new.record(f"copy of {record.id}")
                assert replace(found, id=record.id, offset=record.offset) == record
                wanted = artifact.decode_object(record.id)
                assert new.decode_object(found.id).tobytes() == wanted.tobytes()


def test_bytes_kept_behind_the_end_are_zero(
    multipart: Artifact, split: Split, tmp_path: Path
) -> None:
    kept = multipart.payload_bytes + 1000
    with open_artifact(split(multipart, tmp_path / "m", 16_384, kept_bytes=kept)) as new:
        assert new.payload_bytes == kept
        assert new.read_range(kept - 1000, 1000) == bytes(1000)


def test_progress_adds_up(multipart: Artifact, split: Split, tmp_path: Path) -> None:
    counts: list[int] = []
    additions = [Addition(ResourceSpec("note", b"hello"))]
    split(multipart, tmp_path / "m", 10**9, advance=counts.append, additions=additions)
    assert sum(counts) == multipart.payload_bytes + 5


@settings(max_examples=25)
@given(chunk=st.integers(50, 9000), limit=st.integers(16_384, 60_000))
def test_chunks_may_have_any_size(
    chunk: int, limit: int, conformance: Path, split: Split, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    with open_artifact(conformance / "artifacts/multipart/multipart.ninfer") as artifact:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rewrite, "CHUNK_BYTES", chunk)
            out = split(artifact, folder / "m.ninfer", limit)
        with open_artifact(out) as new:
            assert payload_hash(new) == payload_hash(artifact)


@pytest.mark.parametrize(
    ("changes", "category", "message"),
    [
        ({"kept_bytes": 100}, "writer", "does not lie in the bytes that are kept"),
        ({"bindings": {"p": Binding(object="none")}}, "reference", "names no object"),
        ({"components": {}}, "schema", "lacks member 'text'"),
        ({"metadata": {"x": float("inf")}}, "json", "JSON"),
        ({"objects": ()}, "schema", "objects is empty"),
        ({"artifact_id": b"short"}, "writer", "16 bytes"),
        (
            {"additions": [Addition(TensorSpec("t", (2,), "bf16", "contiguous_le_v1"))]},
            "writer",
            "object 't': added tensor has no source",
        ),
        ({"additions": [Addition(ResourceSpec("r", b""))]}, "schema", "resource is empty"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(
    changes: dict[str, Any],
    category: str,
    message: str,
    multipart: Artifact,
    split: Split,
    tmp_path: Path,
) -> None:
    changes = {"bindings": {}, "uses": ()} | changes
    with pytest.raises(ArtifactError, match=message) as raised:
        split(multipart, tmp_path / "new" / "m.ninfer", 10**9, **changes)
    assert raised.value.category == category
    assert list(tmp_path.iterdir()) == []


def test_an_addition_outside_its_source_leaves_nothing(
    multipart: Artifact, split: Split, tmp_path: Path
) -> None:
    spec = TensorSpec("t", (100,), "bf16", "contiguous_le_v1")
    addition = Addition(spec, multipart.payload, multipart.payload_bytes - 100)
    with pytest.raises(ArtifactError) as raised:
        split(multipart, tmp_path / "m.ninfer", 10**9, additions=[addition])
    assert raised.value.category == "range"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_part_of_the_source_leaves_nothing(
    conformance: Path, split: Split, tmp_path: Path
) -> None:
    path = conformance / "artifacts/tolerated/partial_distribution.ninfer"
    with open_artifact(path) as artifact, pytest.raises(FileNotFoundError):
        split(artifact, tmp_path / "m.ninfer", 10**9)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_not_replaced(
    two_part_artifact: Path, split: Split, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with open_artifact(two_part_artifact) as artifact, pytest.raises(FileExistsError):
        split(artifact, two_part_artifact, 10**9)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
