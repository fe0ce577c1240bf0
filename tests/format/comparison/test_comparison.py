"""What is different between two artifacts, and what is not worth mentioning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    ArtifactError,
    Binding,
    Component,
    Part,
    ResourceSpec,
    TensorSpec,
    Use,
    open_artifact,
)
from ninfer_format.comparison.artifact_comparison import ArtifactComparison
from ninfer_format.comparison.differences import changed_members

A = TensorSpec("a", (64, 64), "bf16", "contiguous_le_v1")
B = TensorSpec("b", (5,), "fp32", "contiguous_le_v1")
WORDS: dict[str, Any] = {
    "a": np.arange(4096, dtype=np.uint16).reshape(64, 64),
    "b": np.arange(5, dtype=np.uint32),
}


def differences(first: Path, second: Path, jobs: int = 2) -> list[tuple[str, str, str, str]]:
    counted: list[int] = []
    with open_artifact(first) as one, open_artifact(second) as other:
        comparison = ArtifactComparison(one, other)
        found = comparison.run(jobs=jobs, advance=lambda amount, item: counted.append(amount))
    assert sum(counted) == comparison.total_bytes
    return [(d.section, d.change, d.name, d.detail) for d in found]


@pytest.mark.parametrize("name", ["all_formats/all_formats", "multipart/multipart"])
def test_an_artifact_equals_itself(name: str, conformance: Path) -> None:
    path = conformance / f"artifacts/{name}.ninfer"
    assert differences(path, path) == []


def test_the_place_of_objects_and_the_cut_into_files_do_not_matter(write_artifact: Any) -> None:
    first = write_artifact([A, B], WORDS, name="first.ninfer")
    second = write_artifact([B, A], WORDS, name="second.ninfer", max_file_bytes=4096 * 3)
    assert second.with_name("second.ninfer.part-0001").exists()
    assert differences(first, second) == []


def test_bytes_are_counted_and_the_first_is_placed(write_artifact: Any) -> None:
    first = write_artifact([A, B], WORDS, name="first.ninfer")
    words = {"a": WORDS["a"].copy(), "b": WORDS["b"]}
    words["a"][1, 5] ^= 0xFFFF
    words["a"][60, 0] ^= 0x0100
    second = write_artifact([A, B], words, name="second.ninfer")
    detail = f"3 of 8192 bytes differ, the first at {2 * (64 + 5)} of the object"
    assert differences(first, second) == [("objects", "changed", "a", detail)]


def test_long_objects_are_compared_to_the_end(write_artifact: Any) -> None:
    spec = TensorSpec("a", (1_500_000,), "bf16", "contiguous_le_v1")
    words = np.zeros(1_500_000, np.uint16)
    first = write_artifact([spec], {"a": words}, name="first.ninfer")
    words[-1] = words[600_000] = 1
    second = write_artifact([spec], {"a": words}, name="second.ninfer")
    detail = "2 of 3000000 bytes differ, the first at 1200000 of the object"
    assert differences(first, second, jobs=1) == [("objects", "changed", "a", detail)]


def test_objects_that_are_described_differently(write_artifact: Any) -> None:
    flat = TensorSpec("a", (4096,), "bf16", "contiguous_le_v1")
    first = write_artifact([A, ResourceSpec("r", b"x")], WORDS, name="first.ninfer", bindings={})
    second = write_artifact(
        [flat, B], WORDS | {"a": WORDS["a"].reshape(-1)}, name="second.ninfer", bindings={}
    )
    assert differences(first, second) == [
        ("objects", "changed", "a", "shape: [64, 64] -> [4096]"),
        ("objects", "removed", "r", ""),
        ("objects", "added", "b", ""),
    ]


def test_every_section_of_the_directory_is_compared(write_artifact: Any) -> None:
    first = write_artifact(
        [A, B, ResourceSpec("r", b"x")],
        WORDS,
        name="first.ninfer",
        components={
            "text": Component({"hidden_size": 64, "rope": {"theta": 1, "gone": [1]}}),
            "mtp": Component({}, target="text"),
        },
        bindings={"text/a": Binding(object="a"), "text/b": Binding(object="b")},
        uses=[Use("text/a", "x", "A16Only"), Use("text/b", "x")],
        metadata={"name": "one"},
        provenance={"tool": "t"},
    )
    second = write_artifact(
        [A, B, ResourceSpec("r", b"x")],
        WORDS,
        name="second.ninfer",
        components={
            "text": Component(
                {"hidden_size": 64, "rope": {"theta": 1.0}}, resources={"chat_template.jinja": "r"}
            ),
            "vision": Component({}),
        },
        bindings={"text/a": Binding(parts=(Part("a", 0, 64),)), "text/c": Binding(object="b")},
        uses=[Use("text/a", "x", "AllowA8"), Use("text/a", "y")],
        metadata={"name": "two"},
        provenance={"tool": "t"},
    )
    assert differences(first, second) == [
        ("components", "changed", "text", "config.rope.theta: 1 -> 1.0"),
        ("components", "changed", "text", "config.rope.gone: [1] -> (absent)"),
        (
            "components",
            "changed",
            "text",
            "resources: (absent) -> {'chat_template.jinja': 'r'}",
        ),
        ("components", "removed", "mtp", ""),
        ("components", "added", "vision", ""),
        ("bindings", "changed", "text/a", "object: 'a' -> (absent)"),
        (
            "bindings",
            "changed",
            "text/a",
            "parts: (absent) -> [{'object': 'a', 'range': [0, 64]}]",
        ),
        ("bindings", "removed", "text/b", ""),
        ("bindings", "added", "text/c", ""),
        ("uses", "changed", "text/a at x", "activation_policy: 'A16Only' -> 'AllowA8'"),
        ("uses", "removed", "text/b at x", ""),
        ("uses", "added", "text/a at y", ""),
        ("metadata", "changed", "name", "'one' -> 'two'"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1}}, []),
        (1, True, ["1 -> True"]),
        ([{"a": 1, "b": [2]}], [{"b": [2], "a": 1}], []),
        ([{"a": 1}], [{"a": 1.0}], ["[{'a': 1}] -> [{'a': 1.0}]"]),
        ([1, 2], [1], ["[1, 2] -> [1]"]),
        ({"a": None}, {}, ["a: None -> (absent)"]),
        ({"a": {}}, {"a": []}, ["a: {} -> []"]),
        ({"a": "x" * 100}, {"a": 1}, [f"a: '{'x' * 56}... -> 1"]),
    ],
)
def test_changed_members(first: Any, second: Any, expected: list[str]) -> None:
    assert list(changed_members(first, second)) == expected


def test_uses_whose_names_run_together_are_told_apart(write_artifact: Any) -> None:
    bindings = {name: Binding(object="b") for name in ("p", "p at q")}
    first = write_artifact(
        [B], WORDS, name="first.ninfer", bindings=bindings, uses=[Use("p", "q at r")]
    )
    second = write_artifact(
        [B], WORDS, name="second.ninfer", bindings=bindings, uses=[Use("p at q", "r")]
    )
    assert [(change, name) for _, change, name, _ in differences(first, second)] == [
        ("removed", "p at q at r"),
        ("added", "p at q at r"),
    ]


def test_a_file_that_is_missing_is_an_error(write_artifact: Any) -> None:
    first = write_artifact([A, B], WORDS, name="first.ninfer")
    second = write_artifact([A, B], WORDS, name="second.ninfer", max_file_bytes=4096 * 3)
    part = second.with_name("second.ninfer.part-0001")
    content = part.read_bytes()
    part.unlink()
    with pytest.raises(FileNotFoundError):
        differences(first, second)
    part.write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match="wrong length"):
        differences(first, second)
