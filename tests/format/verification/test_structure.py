"""What is wrong without looking at words: encodings, files, bindings, divisors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import Binding, Part, TensorSpec, Use
from ninfer_format.verification.artifact_check import Verification

Verify = Callable[..., Verification]

MALFORMED = json.loads(
    (Path(__file__).parents[2] / "data/conformance/malformed/malformed.json").read_text()
)


@pytest.mark.parametrize(
    "entry", [e for e in MALFORMED if e["stage"] == "object"], ids=lambda entry: entry["name"]
)
def test_objects_that_cannot_be_interpreted_are_named_and_the_others_read(
    entry: dict[str, Any], verify: Verify, conformance: Path
) -> None:
    result = verify(conformance / "malformed" / entry["file"])
    assert [(p.category, p.object) for p in result.problems] == [("encoding", entry["argument"])]
    assert result.checked.skipped_objects == 1


@pytest.mark.parametrize(
    "entry", [e for e in MALFORMED if e["stage"] == "part"], ids=lambda entry: entry["name"]
)
def test_continuation_files_that_are_not_right_are_named(
    entry: dict[str, Any], verify: Verify, conformance: Path
) -> None:
    result = verify(conformance / "malformed" / entry["file"])
    (problem,) = result.problems
    assert problem.category == entry["category"]
    assert problem.file == f"{entry['name']}.p1"
    assert result.checked.skipped_objects > 0


def test_every_missing_file_is_listed(verify: Verify, conformance: Path, tmp_path: Path) -> None:
    source = conformance / "artifacts/multipart/multipart.ninfer"
    copy = tmp_path / source.name
    copy.write_bytes(source.read_bytes())
    second = tmp_path / f"{source.name}.part-0002"
    second.write_bytes((conformance / f"artifacts/multipart/{second.name}").read_bytes()[:-1])
    result = verify(copy)
    assert [(p.category, p.file) for p in result.problems] == [
        ("io", f"{source.name}.part-0001"),
        ("part", f"{source.name}.part-0002"),
        ("io", f"{source.name}.part-0003"),
    ]
    assert "no such file" in result.problems[0].message
    assert result.checked.objects + result.checked.skipped_objects == len(
        json.loads(source.with_suffix(".expected.json").read_text())["directory"]["objects"]
    )


def test_objects_of_a_partial_set_are_read(verify: Verify, conformance: Path) -> None:
    path = conformance / "artifacts/tolerated/partial_distribution.ninfer"
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    result = verify(path)
    (problem,) = result.problems
    assert problem.category == "io"
    assert result.checked.objects == len(expected["readable"])
    assert result.checked.skipped_objects == len(expected["must_fail"])


def test_an_unknown_encoding_is_one_problem(verify: Verify, conformance: Path) -> None:
    result = verify(conformance / "artifacts/tolerated/unknown_encoding_present.ninfer")
    assert [problem.category for problem in result.problems] == ["encoding"]


def test_bytes_that_no_object_covers_are_a_note(verify: Verify, conformance: Path) -> None:
    result = verify(conformance / "artifacts/tolerated/gaps.ninfer")
    assert result.problems == ()
    (note,) = [note for note in result.notes if "belong to no object" in note]
    assert "gaps" in note
    clean = verify(conformance / "artifacts/multipart/multipart.ninfer")
    assert not any("belong to no object" in note for note in clean.notes)


FP32 = TensorSpec("d", (4,), "fp32", "contiguous_le_v1")
INT32 = TensorSpec("i", (4,), "int32", "contiguous_le_v1")


def words(*values: float) -> dict[str, Any]:
    return {
        "d": np.array(values, np.float32).view(np.uint32),
        "i": np.arange(4, dtype=np.int32),
    }


def test_a_binding_of_integers_and_reals_together(verify: Verify, write_artifact: Any) -> None:
    mixed = Binding(parts=(Part("d", 0, 2), Part("i", 0, 2)))
    path = write_artifact([FP32, INT32], words(1, 1, 1, 1), bindings={"text/mixed": mixed})
    (problem,) = verify(path).problems
    assert problem.category == "reference"
    assert "'text/mixed'" in problem.message


def uses(binding: Binding) -> list[Use]:
    return [Use("text/i", "x", None, {"activation_input_divisor": binding})]


@pytest.mark.parametrize(
    ("index", "value", "is_legal"),
    [
        (0, 1.5, True),
        (1, 0.0, False),
        (2, float("inf"), False),
        (3, -1.0, False),
        (0, float("nan"), False),
        (3, 1e-40, True),
    ],
)
def test_activation_divisors_are_finite_and_above_zero(
    index: int, value: float, is_legal: bool, verify: Verify, write_artifact: Any
) -> None:
    values = [1.0] * 4
    values[index] = value
    binding = Binding(parts=(Part("d", index, index + 1),))
    path = write_artifact([FP32, INT32], words(*values), uses=uses(binding))
    problems = verify(path).problems
    if is_legal:
        assert problems == ()
    else:
        (problem,) = problems
        assert (problem.category, problem.object, problem.offset) == ("codec", "d", 4 * index)
        assert "activation_input_divisor of 'text/i'" in problem.message


@pytest.mark.parametrize(
    "binding",
    [
        pytest.param(Binding(object="d"), id="a vector"),
        pytest.param(Binding(parts=(Part("d", 0, 2),)), id="two elements"),
        pytest.param(Binding(parts=(Part("d", 0, 1), Part("d", 1, 2))), id="two parts"),
        pytest.param(Binding(parts=(Part("i", 0, 1),)), id="an integer"),
    ],
)
def test_activation_divisors_are_single_numbers(
    binding: Binding, verify: Verify, write_artifact: Any
) -> None:
    path = write_artifact([FP32, INT32], words(1, 1, 1, 1), uses=uses(binding))
    (problem,) = verify(path).problems
    assert problem.category == "reference"
    assert "not one fp32 number" in problem.message
