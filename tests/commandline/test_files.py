"""Output files appear whole or not at all."""

import os
from pathlib import Path

import pytest

from ninfer_format.commandline import new_output, refuse_existing
from ninfer_format.errors import UsageError


def test_output_appears_with_its_content_and_alone(tmp_path: Path):
    target = tmp_path / "a.json"

    with new_output(target) as file:
        assert not target.exists()
        file.write(b"content")

    assert target.read_bytes() == b"content"
    assert os.listdir(tmp_path) == ["a.json"]


def test_nothing_remains_after_a_failure(tmp_path: Path):
    def write_and_fail() -> None:
        with new_output(tmp_path / "a.json") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()

    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_refused_and_kept(tmp_path: Path):
    target = tmp_path / "a.json"
    target.write_bytes(b"old")

    with pytest.raises(UsageError, match="exists already"), new_output(target):
        pass

    assert target.read_bytes() == b"old"


def test_force_replaces_an_existing_file(tmp_path: Path):
    target = tmp_path / "a.json"
    target.write_bytes(b"old")

    with new_output(target, force=True) as file:
        file.write(b"new")

    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("force", [False, True, None])
def test_a_pipe_is_never_replaced(tmp_path: Path, force: bool | None):
    pipe = tmp_path / "a.json"
    os.mkfifo(pipe)

    with pytest.raises(UsageError, match="device or a pipe"), new_output(pipe, force=force):
        pass

    assert pipe.is_fifo()


def test_a_dangling_link_counts_as_existing(tmp_path: Path):
    link = tmp_path / "a.json"
    link.symlink_to(tmp_path / "missing")

    with pytest.raises(UsageError, match="exists already"):
        refuse_existing(link)


def test_a_folder_is_refused_even_with_force(tmp_path: Path):
    with pytest.raises(UsageError, match="folder"):
        refuse_existing(tmp_path, force=True)
