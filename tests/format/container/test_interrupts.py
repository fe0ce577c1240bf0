"""An interrupt at any moment of writing leaves a complete artifact or nothing at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ninfer_format import (
    ArtifactPlan,
    ArtifactWriter,
    Component,
    ResourceSpec,
    open_artifact,
    plan_artifact,
)
from ninfer_format.container import file_set, rewrite, writer
from ninfer_format.publish import StagedFiles

RESOURCE = bytes(range(256)) * 40
STRIDE = 7
"""Not every moment: that would take minutes."""
INTERRUPTED_FILES = {
    module.__file__ for module in (file_set, rewrite, writer, sys.modules[StagedFiles.__module__])
}


@pytest.fixture(autouse=True)
def _disks_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def plan() -> ArtifactPlan:
    """Three files."""
    return plan_artifact(
        [ResourceSpec("r", RESOURCE)],
        components={"text": Component({}, resources={"role": "r"})},
        bindings={},
        max_file_bytes=8192,
    )


def interrupt_after(steps: int, action: Callable[[], object], functions: set[str]) -> bool:
    """Run an action and raise an interrupt in it; returns whether it came to an end before.

    A step is one instruction of the interpreter, which is where the handler of a signal runs, in
    the modules under test or only in some functions of them.
    """
    left = steps

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in INTERRUPTED_FILES:
            return None
        if functions and frame.f_code.co_name not in functions:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(previous)
    return True


def moments(
    action: Callable[[], object], stride: int, functions: set[str] | None = None
) -> Iterator[int]:
    """Interrupt an action later and later until it ends; yields after each interrupt."""
    steps = 1
    while not interrupt_after(steps, action, functions or set()):
        yield steps
        steps += stride


def test_an_interrupt_at_any_moment_leaves_all_or_nothing(
    plan: ArtifactPlan, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "m.ninfer"

    def write() -> None:
        with ArtifactWriter(path, plan):
            pass

    seen = set()
    for moment in moments(write, stride=STRIDE):
        found = sorted(path.parent.iterdir()) if path.parent.exists() else []
        if found:
            assert [file.name for file in found] == sorted(
                ["m.ninfer", "m.ninfer.part-0001", "m.ninfer.part-0002"]
            ), moment
            with open_artifact(path) as artifact:
                assert artifact.resource("text", "role") == RESOURCE
            for file in found:
                file.unlink()
            path.parent.rmdir()
        assert list(tmp_path.iterdir()) == [], moment
        seen.add(bool(found))
    assert seen == {False, True}, "moments before and after the artifact appeared"


def test_an_interrupt_while_a_set_is_replaced_leaves_the_old_or_the_new_one(
    tmp_path: Path,
) -> None:
    names = ("a", "b", "c", "d")

    def fill() -> None:
        for name in names:
            (tmp_path / name).unlink(missing_ok=True)
        for name in ("a", "b", "d"):
            (tmp_path / name).write_text("old", encoding="utf-8")

    def replace_set() -> None:
        with StagedFiles() as staged:
            for name in ("c", "b", "a"):
                os.pwrite(staged.create(tmp_path / name), b"new", 0)
            staged.publish_replacing([tmp_path / "d"])

    old, new = {"a": "old", "b": "old", "d": "old"}, {"a": "new", "b": "new", "c": "new"}
    fill()
    seen = []
    for moment in moments(replace_set, stride=1, functions={"_exchange"}):
        found = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
        assert found in (old, new), moment
        seen.append(found)
        fill()
    assert old in seen
    assert new in seen


SCRIPT = """
import sys
from ninfer_format import ArtifactWriter, Component, ResourceSpec, plan_artifact
plan = plan_artifact(
    [ResourceSpec("r", bytes(3_000_000))],
    components={"text": Component({})}, bindings={}, max_file_bytes=1_000_000,
)
print("ready", flush=True)
for index in range(200):  # so that a signal that is ignored fills no disk
    with ArtifactWriter(f"{sys.argv[1]}/{index}.ninfer", plan):
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_to_a_process_that_writes_leaves_complete_artifacts_only(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = SCRIPT
    if number == signal.SIGTERM:  # As commands do it.
        script = "import signal\nsignal.signal(15, signal.default_int_handler)\n" + SCRIPT
    for milliseconds in (0, 3, 11, 26, 58):
        folder = tmp_path / f"{milliseconds}"
        folder.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(milliseconds / 1000)
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        assert "KeyboardInterrupt" in errors
        entries = [path for path in folder.iterdir() if path.suffix == ".ninfer"]
        expected = sorted(
            entries + [e.with_name(f"{e.name}.part-000{i}") for e in entries for i in (1, 2, 3)]
        )
        assert sorted(folder.iterdir()) == expected
        for entry in entries:
            with open_artifact(entry) as artifact:
                assert artifact.read_range(0, artifact.payload_bytes) == bytes(3_000_000)
