from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from ninfer_format import (
    ArtifactError,
    Binding,
    Component,
    Part,
    ResourceSpec,
    TensorSpec,
    open_artifact,
)
from ninfer_format.container.framing import ENTRY_MAGIC, MAX_JSON_BYTES
from ninfer_format.container.json_text import dump_json


def category(raised: pytest.ExceptionInfo[ArtifactError]) -> str:
    return raised.value.category


@pytest.fixture
def mixed_artifact(write_artifact) -> Path:
    specs = [
        ResourceSpec("r", b"hello"),
        TensorSpec("a", (4, 6), "fp32", "contiguous_le_v1"),
        TensorSpec("i", (5,), "int32", "contiguous_le_v1"),
        TensorSpec("s", (), "fp32", "contiguous_le_v1"),
    ]
    words = {
        "a": np.arange(24, dtype=np.float32).reshape(4, 6).view(np.uint32),
        "i": np.arange(5, dtype=np.int32),
        "s": np.array(2.5, np.float32).view(np.uint32),
    }
    path: Path = write_artifact(
        specs,
        words,
        components={"text": Component({"model_type": "x"}, resources={"greeting": "r"})},
        bindings={
            "text/a": Binding(object="a"),
            "text/middle": Binding(parts=(Part("a", 6, 18),)),
            "text/swapped": Binding(parts=(Part("a", 12, 24), Part("a", 0, 12))),
            "text/mixed": Binding(parts=(Part("a", 0, 1), Part("i", 0, 1))),
            "text/i": Binding(object="i"),
            "text/s": Binding(object="s"),
        },
        metadata={"name": "mixed"},
    )
    return path


def test_parameters_have_their_shapes_and_types(mixed_artifact: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    with open_artifact(mixed_artifact) as artifact:
        assert np.array_equal(artifact.decode_parameter("text/a"), whole)
        assert np.array_equal(artifact.decode_parameter("text/middle"), whole[1:3].reshape(-1))
        assert np.array_equal(artifact.decode_parameter("text/middle", (2, 6)), whole[1:3])
        swapped = np.concatenate([whole[2:], whole[:2]])
        assert np.array_equal(artifact.decode_parameter("text/swapped", (4, 6)), swapped)
        assert artifact.decode_parameter("text/i").dtype == np.int32
        scalar = artifact.decode_parameter("text/s")
        assert scalar.shape == ()
        assert scalar == np.float32(2.5)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("text/none", None, "'text/none' is not bound"),
        ("text/a", (5, 5), r"bound to 24 elements, but its shape \[5, 5\] has 25"),
        ("text/mixed", None, "integers and reals"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    name: str, shape: tuple[int, ...] | None, message: str, mixed_artifact: Path
) -> None:
    with open_artifact(mixed_artifact) as artifact:
        with pytest.raises(ArtifactError, match=message) as raised:
            artifact.decode_parameter(name, shape)
        assert category(raised) == "reference"


def test_resources_are_found_by_component_and_role(mixed_artifact: Path) -> None:
    with open_artifact(mixed_artifact) as artifact:
        assert artifact.resource("text", "greeting") == b"hello"
        assert artifact.has_resource("text", "greeting")
        assert not artifact.has_resource("text", "other")
        assert not artifact.has_resource("vision", "greeting")
        with pytest.raises(ArtifactError, match="component 'vision' has no resource 'greeting'"):
            artifact.resource("vision", "greeting")


def test_unknown_and_wrong_objects_are_reference_errors(mixed_artifact: Path) -> None:
    with open_artifact(mixed_artifact) as artifact:
        with pytest.raises(ArtifactError, match="no object 'z'") as raised:
            artifact.read_object("z")
        assert category(raised) == "reference"
        with pytest.raises(ArtifactError, match="is a resource, not a tensor") as raised:
            artifact.words("r")
        assert category(raised) == "reference"


def test_objects_are_read_without_a_copy_and_read_only(mixed_artifact: Path) -> None:
    with open_artifact(mixed_artifact) as artifact:
        payload = artifact.read_object("a")
        assert not payload.flags.owndata
        assert not payload.flags.writeable
        assert not artifact.decode_object("a").flags.writeable


def test_arrays_outlive_the_artifact_but_reads_do_not(mixed_artifact: Path) -> None:
    with open_artifact(mixed_artifact) as artifact:
        payload = artifact.read_object("i")
    mixed_artifact.unlink()
    assert payload.view("<i4").tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="closed"):
        artifact.read_object("i")


def test_ranges_are_checked(mixed_artifact: Path) -> None:
    with open_artifact(mixed_artifact) as artifact:
        end = artifact.payload_bytes
        assert artifact.read_range(end, 0) == b""
        assert artifact.read_range(0, 5) == b"hello"
        for offset, length in [(end, 1), (end + 1, 0), (-1, 1), (0, -1), (0, 2**70), (2**70, 1)]:
            with pytest.raises(ArtifactError) as raised:
                artifact.read_range(offset, length)
            assert category(raised) == "range"


def test_objects_across_files_are_joined(two_part_artifact: Path) -> None:
    with open_artifact(two_part_artifact) as artifact:
        assert [file.path for file in artifact.directory.files] == [
            None,
            "model.ninfer.part-0001",
        ]
        assert artifact.decode_object("w").tolist() == list(range(8192))
        assert artifact.decode_parameter("text/w")[6000] == 6000
        total = sum(path.stat().st_size for path in two_part_artifact.parent.iterdir())
        assert artifact.file_bytes == total


def test_the_set_of_files_can_be_moved(two_part_artifact: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in list(tmp_path.glob("model.ninfer*")):
        path.rename(moved / path.name)
    with open_artifact(moved / "model.ninfer") as artifact:
        assert artifact.decode_object("w")[-1] == 8191


def test_a_missing_part_fails_the_reads_that_need_it(two_part_artifact: Path) -> None:
    part = two_part_artifact.with_name("model.ninfer.part-0001")
    hidden = part.rename(part.with_suffix(".hidden"))
    with open_artifact(two_part_artifact) as artifact:
        assert artifact.read_range(0, 100)
        with pytest.raises(FileNotFoundError):
            artifact.read_object("w")
        hidden.rename(part)
        assert artifact.decode_object("w")[-1] == 8191, "a part is looked for again"


@pytest.fixture
def _without_waiting() -> Iterator[None]:
    """Fail instead of waiting for somebody to write into a pipe."""

    def fail(*_: object) -> NoReturn:
        raise TimeoutError("waited for a pipe")

    previous = signal.signal(signal.SIGALRM, fail)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.usefixtures("_without_waiting")
def test_a_pipe_is_no_artifact(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.ninfer")
    with pytest.raises(ArtifactError, match=r"m\.ninfer: not a regular file") as raised:
        open_artifact(tmp_path / "m.ninfer")
    assert category(raised) == "framing"


@pytest.mark.usefixtures("_without_waiting")
def test_a_pipe_is_no_part(two_part_artifact: Path) -> None:
    part = two_part_artifact.with_name(f"{two_part_artifact.name}.part-0001")
    part.unlink()
    os.mkfifo(part)
    with (
        open_artifact(two_part_artifact) as artifact,
        pytest.raises(ArtifactError, match=r"part-0001: not a regular file") as raised,
    ):
        artifact.read_range(0, artifact.payload_bytes)
    assert category(raised) == "part"


def test_a_truncated_part_is_named(two_part_artifact: Path) -> None:
    part = two_part_artifact.with_name("model.ninfer.part-0001")
    part.write_bytes(part.read_bytes()[:-1])
    with open_artifact(two_part_artifact) as artifact:
        with pytest.raises(ArtifactError, match=r"part-0001: wrong length") as raised:
            artifact.read_object("w")
        assert category(raised) == "part"
        assert raised.value.path == str(part)


@pytest.mark.parametrize("kept", [0, 7, 8, 31, 32, 33, 200, 4095, 4096, 4100])
def test_a_truncated_entry_is_a_framing_error(kept: int, mixed_artifact: Path) -> None:
    content = mixed_artifact.read_bytes()
    assert kept < len(content)
    mixed_artifact.write_bytes(content[:kept])
    with pytest.raises(ArtifactError) as raised:
        open_artifact(mixed_artifact)
    assert category(raised) == "framing"


def test_a_directory_beyond_all_measure_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.ninfer"
    with path.open("wb") as file:
        file.write(ENTRY_MAGIC + (MAX_JSON_BYTES + 1).to_bytes(8, "little") + bytes(16))
        file.truncate(2 * MAX_JSON_BYTES)
    with pytest.raises(ArtifactError, match="directory is too long") as raised:
        open_artifact(path)
    assert (raised.value.category, raised.value.offset) == ("framing", 8)


def test_many_threads_read_the_same_artifact(two_part_artifact: Path) -> None:
    whole = np.arange(8192, dtype="<i4").tobytes()
    start = threading.Barrier(8)

    def read(seed: int) -> bool:
        random = np.random.default_rng(seed)
        start.wait()
        for _ in range(200):
            begin, end = sorted(random.integers(0, len(whole), 2).tolist())
            if artifact.read_range(begin, end - begin) != whole[begin:end]:
                return False
            if artifact.read_object("w").tobytes() != whole:
                return False
        return True

    with open_artifact(two_part_artifact) as artifact, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_the_stored_text_is_the_directory(mixed_artifact: Path) -> None:
    content = mixed_artifact.read_bytes()
    text = content[32 : 32 + int.from_bytes(content[8:16], "little")]
    with open_artifact(mixed_artifact) as artifact:
        assert json.loads(text) == artifact.directory.to_json()
        assert text.rstrip(b" ") == dump_json(artifact.directory.to_json())
