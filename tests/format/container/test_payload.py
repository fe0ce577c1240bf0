"""Attacks on the files of an artifact: cut, replaced, linked and missing ones."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import Artifact, ArtifactError, open_artifact

WHOLE = np.arange(8192, dtype="<i4").tobytes()
PART = "model.ninfer.part-0001"
FIRST_SEGMENT = 4096 * 7
"""Payload bytes in the entry of `two_part_artifact`."""

READS: dict[str, Callable[[Artifact, int, int], Any]] = {
    "read_range": lambda artifact, offset, length: artifact.read_range(offset, length),
    "read_into": lambda artifact, offset, length: artifact.read_into(offset, bytearray(length)),
    "read_object": lambda artifact, offset, length: artifact.read_object("w"),
    "decode_object": lambda artifact, offset, length: artifact.decode_object("w"),
    "row_slice_payload": lambda artifact, offset, length: artifact.row_slice_payload(
        "w", 0, artifact.codec("w").rows
    ),
    "words": lambda artifact, offset, length: artifact.words("w"),
    "decode_parameter": lambda artifact, offset, length: artifact.decode_parameter("text/w"),
    "read_rows": lambda artifact, offset, length: artifact.read_rows("text/w", (0, 8192)),
}


@pytest.fixture(params=READS)
def read(request: pytest.FixtureRequest) -> Callable[[Artifact, int, int], Any]:
    return READS[request.param]


def test_the_payload_lies_in_the_files_as_these_tests_think(two_part_artifact: Path) -> None:
    with open_artifact(two_part_artifact) as artifact:
        assert [file.payload_bytes for file in artifact.directory.files] == [
            FIRST_SEGMENT,
            len(WHOLE) - FIRST_SEGMENT,
        ]
        assert artifact.read_range(0, len(WHOLE)) == WHOLE


@pytest.mark.parametrize("chunk", [1, 7, 4095, 4096, 30_000])
def test_chunks_of_any_size_add_up_to_the_payload(two_part_artifact: Path, chunk: int) -> None:
    found = bytearray(len(WHOLE))
    with open_artifact(two_part_artifact) as artifact:
        for offset in range(0, len(WHOLE), chunk):
            artifact.read_into(offset, memoryview(found)[offset : offset + chunk])
            length = min(chunk, len(WHOLE) - offset)
            assert artifact.read_range(offset, length) == WHOLE[offset : offset + length]
    assert found == WHOLE


def test_buffers_of_any_contiguous_type_are_filled(two_part_artifact: Path) -> None:
    array = np.zeros((2, 3), "<i4")
    with open_artifact(two_part_artifact) as artifact:
        artifact.read_into(FIRST_SEGMENT - 8, array)
        assert array.tobytes() == WHOLE[FIRST_SEGMENT - 8 : FIRST_SEGMENT + 16]
        artifact.read_into(len(WHOLE), np.empty((3, 0), np.uint8))
        with pytest.raises(ArtifactError) as raised:
            artifact.read_into(len(WHOLE) - 3, bytearray(4))
        assert raised.value.category == "range"


@pytest.mark.parametrize("is_opened", [False, True], ids=["before", "after the part was read"])
def test_a_part_that_is_cut_short_is_an_error(
    two_part_artifact: Path, read: Callable[[Artifact, int, int], Any], is_opened: bool
) -> None:
    part = two_part_artifact.with_name(PART)
    with open_artifact(two_part_artifact) as artifact:
        if is_opened:
            read(artifact, 0, len(WHOLE))
        os.truncate(part, 4096 + 10)
        with pytest.raises(ArtifactError) as raised:
            read(artifact, 0, len(WHOLE))
        assert raised.value.category == "part"
        assert raised.value.path == str(part)
        assert artifact.read_range(0, FIRST_SEGMENT) == WHOLE[:FIRST_SEGMENT]


def test_an_entry_that_is_cut_short_while_open_is_an_error(
    two_part_artifact: Path, read: Callable[[Artifact, int, int], Any]
) -> None:
    with open_artifact(two_part_artifact) as artifact:
        read(artifact, 0, len(WHOLE))
        os.truncate(two_part_artifact, 4096 + 10)
        with pytest.raises(ArtifactError, match="cut short while it was open") as raised:
            read(artifact, 0, len(WHOLE))
        assert raised.value.category == "framing"
        assert raised.value.path == str(two_part_artifact)


def test_a_view_of_a_file_that_was_cut_short_is_refused(write_files: Any, tmp_path: Path) -> None:
    path = write_files(tmp_path, one_tensor(2048, 8192), bytes(8192))
    with open_artifact(path) as artifact:
        assert artifact.read_object("w").size == 8192
        os.truncate(path, 4096 + 5000)
        with pytest.raises(ArtifactError) as raised:
            artifact.read_object("w")
        assert raised.value.category == "framing"


def one_tensor(elements: int, num_bytes: int, **members: Any) -> dict[str, Any]:
    """A directory with one int32 tensor."""
    record: dict[str, Any] = {"id": "w", "kind": "tensor", "shape": [elements], "format": "int32"}
    record |= {"layout": "contiguous_le_v1", "offset": 0, "bytes": num_bytes}
    return {
        "components": {"text": {"config": {}}},
        "objects": [record | members],
        "bindings": {"text/w": {"object": "w"}},
        "uses": [],
    }


# --- replaced and linked files ------------------------------------------------------------------


def replace(path: Path, content: bytes | bytearray) -> None:
    """Put another file in the place of `path`, as a download or a second conversion does."""
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def test_a_part_of_another_artifact_is_refused_after_it_took_the_place(
    two_part_artifact: Path, read: Callable[[Artifact, int, int], Any]
) -> None:
    part = two_part_artifact.with_name(PART)
    content = bytearray(part.read_bytes())
    content[16] ^= 1
    with open_artifact(two_part_artifact) as artifact:
        assert artifact.read_range(0, 10) == WHOLE[:10]
        replace(part, content)
        with pytest.raises(ArtifactError, match="part of another artifact") as raised:
            read(artifact, 0, len(WHOLE))
        assert raised.value.category == "part"


def test_files_that_are_open_stay_the_ones_that_were_opened(two_part_artifact: Path) -> None:
    with open_artifact(two_part_artifact) as artifact:
        assert artifact.read_range(0, len(WHOLE)) == WHOLE
        for path in (two_part_artifact, two_part_artifact.with_name(PART)):
            replace(path, b"something else")
        assert artifact.read_range(0, len(WHOLE)) == WHOLE
        assert artifact.decode_object("w").tobytes() == WHOLE


def test_links_to_the_files_are_followed(two_part_artifact: Path, tmp_path: Path) -> None:
    """A folder of links, with the files elsewhere under other names, as a download cache has it."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for index, path in enumerate((two_part_artifact, two_part_artifact.with_name(PART))):
        path.rename(blobs / f"{index}")
        (snapshot / path.name).symlink_to(blobs / f"{index}")
    with open_artifact(snapshot / two_part_artifact.name) as artifact:
        assert artifact.read_range(0, len(WHOLE)) == WHOLE
    with open_artifact(blobs / "0") as artifact, pytest.raises(FileNotFoundError):
        artifact.read_range(0, len(WHOLE))


def test_a_part_may_be_a_link_to_a_sibling_but_not_to_the_entry(two_part_artifact: Path) -> None:
    part = two_part_artifact.with_name(PART)
    part.rename(part.with_name("kept"))
    part.symlink_to("kept")
    with open_artifact(two_part_artifact) as artifact:
        assert artifact.read_range(0, len(WHOLE)) == WHOLE
    part.unlink()
    part.symlink_to(two_part_artifact.name)
    with open_artifact(two_part_artifact) as artifact:
        with pytest.raises(ArtifactError, match="not a continuation file") as raised:
            artifact.read_range(0, len(WHOLE))
        assert raised.value.category == "part"


def test_links_that_lead_nowhere_are_the_operating_systems_error(two_part_artifact: Path) -> None:
    part = two_part_artifact.with_name(PART)
    part.unlink()
    part.symlink_to(part.name)
    with open_artifact(two_part_artifact) as artifact:
        with pytest.raises(OSError, match="symbolic links"):
            artifact.read_range(0, len(WHOLE))
        part.unlink()
        part.symlink_to("nowhere")
        with pytest.raises(FileNotFoundError):
            artifact.read_range(0, len(WHOLE))


def test_a_folder_or_device_in_the_place_of_a_part_is_refused(two_part_artifact: Path) -> None:
    part = two_part_artifact.with_name(PART)
    part.unlink()
    part.mkdir()
    with open_artifact(two_part_artifact) as artifact:
        with pytest.raises(IsADirectoryError):
            artifact.read_range(0, len(WHOLE))
        part.rmdir()
        part.symlink_to("/dev/zero")
        with pytest.raises(ArtifactError, match="not a regular file") as raised:
            artifact.read_range(0, len(WHOLE))
        assert raised.value.category == "part"


# --- partial sets and made-up lengths -----------------------------------------------------------


def test_a_partial_set_serves_what_it_has(write_files: Any, tmp_path: Path) -> None:
    directory = one_tensor(4, 16)
    directory["objects"] += [
        directory["objects"][0] | {"id": "both", "offset": 256, "shape": [100], "bytes": 400},
        directory["objects"][0] | {"id": "far", "offset": 1024, "shape": [2], "bytes": 8},
    ]
    directory["bindings"] = {"both": {"object": "both"}}
    payload = np.arange(258, dtype="<i4").tobytes()
    path = write_files(tmp_path, directory, payload[:500], payload[500:900], payload[900:])
    path.with_name("part 1").unlink()
    with open_artifact(path) as artifact:
        assert artifact.decode_object("w").tolist() == [0, 1, 2, 3]
        assert artifact.decode_object("far").tolist() == [256, 257]
        # Rows of an object in two files, of which one is there.
        assert artifact.read_rows("both", (0, 61)).tolist() == list(range(64, 125))
        assert artifact.row_slice_payload("both", 60, 61)[1].tobytes() == payload[496:500]
        for needs_it in (
            lambda: artifact.read_object("both"),
            lambda: artifact.decode_object("both"),
            lambda: artifact.read_rows("both", (60, 62)),
            lambda: artifact.read_range(499, 2),
            lambda: artifact.read_into(0, bytearray(1000)),
        ):
            with pytest.raises(FileNotFoundError):
                needs_it()


def test_nothing_is_allocated_by_a_length_that_only_the_directory_says(
    read: Callable[[Artifact, int, int], Any], write_files: Any, tmp_path: Path
) -> None:
    size = 2**32
    directory = one_tensor(size // 4, size)
    cuts = [[0, size // 8], [size // 8, size // 4]]
    directory["bindings"]["text/w"] = {"parts": [{"object": "w", "range": cut} for cut in cuts]}
    path = write_files(tmp_path, directory, b"only this", size - 9)
    with open_artifact(path) as artifact:
        assert artifact.payload_bytes == size
        tracemalloc.start()
        try:
            with pytest.raises(FileNotFoundError):
                artifact.payload.view(0, size)
            if read is not READS["read_into"]:  # There the caller allocates.
                with pytest.raises(FileNotFoundError):
                    read(artifact, 0, size)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    "read_part",
    [
        lambda artifact: artifact.read_columns("text/w", 0, 1),
        lambda artifact: artifact.read_columns("text/w", 1, 2, (2**15, 2**15)),
        lambda artifact: artifact.read_rows("text/w", np.array([0, 2**14]), (2**15, 2**15)),
    ],
    ids=["columns", "columns of another shape", "rows by index"],
)
def test_nothing_is_allocated_for_rows_and_columns_that_are_not_there(
    read_part: Callable[[Artifact], Any], write_files: Any, tmp_path: Path
) -> None:
    size = 2**32
    directory = one_tensor(size // 4, size)
    directory["objects"][0]["shape"] = [2**20, 2**10]
    path = write_files(tmp_path, directory, b"only this", size - 9)
    with open_artifact(path) as artifact:
        tracemalloc.start()
        try:
            with pytest.raises(FileNotFoundError):
                read_part(artifact)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


# --- threads ------------------------------------------------------------------------------------


def test_threads_open_parts_once_and_read_every_way(two_part_artifact: Path) -> None:
    start = threading.Barrier(8)
    values = np.frombuffer(WHOLE, "<i4")

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        start.wait()
        for _ in range(100):
            begin, end = sorted(random.integers(0, 8193, 2).tolist())
            rows = random.integers(0, 8192, 20)
            buffer = np.empty(end - begin, "<i4")
            artifact.read_into(4 * begin, buffer)
            assert np.array_equal(buffer, values[begin:end])
            assert artifact.read_range(4 * begin, 4 * (end - begin)) == buffer.tobytes()
            assert np.array_equal(artifact.read_rows("text/w", rows), values[rows])
            assert np.array_equal(artifact.decode_object("w"), values)

    gc.collect()  # Closes what other tests left open.
    before = len(os.listdir("/proc/self/fd"))
    with open_artifact(two_part_artifact) as artifact, ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
        assert len(os.listdir("/proc/self/fd")) == before + 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_while_others_read_never_gives_them_another_files_bytes(
    two_part_artifact: Path, tmp_path: Path
) -> None:
    """The number of a closed descriptor goes to the next file that is opened."""
    decoy = tmp_path / "decoy"
    decoy.write_bytes(bytes(50_000))

    def read_until_closed(artifact: Artifact) -> None:
        buffer = bytearray(len(WHOLE))
        while True:
            artifact.read_into(0, buffer)
            assert buffer == WHOLE

    with ThreadPoolExecutor(3) as pool:
        for _ in range(30):
            artifact = open_artifact(two_part_artifact)
            readers = [pool.submit(read_until_closed, artifact) for _ in range(3)]
            artifact.read_range(0, 10)
            artifact.close()
            files = [decoy.open("rb") for _ in range(4)]
            for reader in readers:
                with pytest.raises(ValueError, match="closed"):
                    reader.result()
            for file in files:
                file.close()


def test_copies_of_a_set_are_independent(two_part_artifact: Path, tmp_path: Path) -> None:
    shutil.copytree(two_part_artifact.parent, tmp_path / "copy")
    with open_artifact(tmp_path / "copy" / two_part_artifact.name) as artifact:
        two_part_artifact.with_name(PART).unlink()
        assert artifact.read_range(0, len(WHOLE)) == WHOLE
