"""``--tensor``: statistics and values of objects, parameters and tensors of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import Binding, Part, TensorSpec, open_artifact


@pytest.fixture(scope="module")
def expected_values(all_formats: Path) -> dict[str, np.ndarray]:
    """Values of every tensor object, decoded by the codecs, which have tests of their own."""
    with open_artifact(all_formats) as artifact:
        return {
            record.id: artifact.decode_object(record.id) for record in artifact.directory.tensors
        }


def test_every_object_has_statistics(
    document: Any, all_formats: Path, expected_values: dict[str, np.ndarray]
) -> None:
    for name, values in expected_values.items():
        found = document(all_formats, "--tensor", name)
        finite = values[np.isfinite(values)].astype(np.float64)
        statistics = found["statistics"]
        assert found["tensor"]["name"] == name
        assert statistics["count"] == values.size
        assert found["tensor"]["shape"] == list(values.shape)
        assert statistics["non_finite"] == values.size - finite.size
        if not finite.size:
            assert statistics["min"] is None
            continue
        assert statistics["min"] == finite.min()
        assert statistics["max"] == finite.max()
        assert statistics["mean"] == pytest.approx(finite.mean(), rel=1e-12, abs=1e-300)
        assert found["values"] is None


def test_the_document_has_these_members(document: Any, all_formats: Path) -> None:
    found = document(all_formats, "--tensor", "w.q5.5x256", "--rows", "1:3", "--cols", "254:")
    assert list(found) == [
        "schema",
        "ok",
        "path",
        "tensor",
        "rows",
        "columns",
        "statistics",
        "values",
    ]
    assert found["tensor"] == {
        "name": "w.q5.5x256",
        "kind": "object",
        "formats": ["q5_g64_fp16"],
        "shape": [5, 256],
        "bytes": 1064,
    }
    assert list(found["statistics"]) == [
        "count",
        "non_finite",
        "zeros",
        "zero_fraction",
        "min",
        "max",
        "mean",
        "std",
        "histogram",
    ]
    assert (found["rows"], found["columns"]) == ([1, 3], [254, 256])


@pytest.mark.parametrize(
    ("rows", "columns"), [(":", "3:9"), ("2:4", None), (None, ":1"), ("4:", "255:256")]
)
def test_values_of_a_range(
    rows: str | None,
    columns: str | None,
    document: Any,
    all_formats: Path,
    expected_values: dict[str, np.ndarray],
) -> None:
    name = "w.q5.5x256"
    arguments = [*(("--rows", rows) if rows else ()), *(("--cols", columns) if columns else ())]
    found = document(all_formats, "--tensor", name, *arguments)
    part = expected_values[name][slice(*found["rows"]), slice(*found["columns"])]
    assert found["values"] == part.tolist()
    assert found["statistics"]["count"] == part.size
    assert found["statistics"]["max"] == part.max()


def test_values_as_lines(inspect: Any, write_artifact: Any) -> None:
    spec = TensorSpec("w", (3, 2), "fp32", "contiguous_le_v1")
    words = np.array([[1.5, -0.0], [np.nan, np.inf], [1e-40, 3]], np.float32).view(np.uint32)
    path = write_artifact([spec], {"w": words})
    code, out, _ = inspect(path, "--tensor", "w", "--rows", "1:")
    assert code == 0
    assert out.splitlines()[-2:] == ["1: nan inf", "2: 9.999946e-41 3"]
    lines = dict(line.split(maxsplit=1) for line in out.splitlines()[:-3])
    assert lines["non-finite"] == "2"
    assert lines["rows"] == "1:3"
    found = json.loads(inspect(path, "--tensor", "w", "--rows", ":", "--json")[1])
    assert found["values"][1] == ["nan", "inf"]


def test_scalars_vectors_and_many_axes(document: Any, inspect: Any, write_artifact: Any) -> None:
    specs = [
        TensorSpec("s", (), "fp32", "contiguous_le_v1"),
        TensorSpec("v", (5,), "int32", "contiguous_le_v1"),
        TensorSpec("t", (2, 3, 4), "bf16", "contiguous_le_v1"),
    ]
    words = {
        "s": np.array(2.5, np.float32).view(np.uint32),
        "v": np.arange(5, dtype=np.int32),
        "t": (np.arange(24, dtype=np.uint16).reshape(2, 3, 4) + 0x3F80),
    }
    path = write_artifact(specs, words)
    assert document(path, "--tensor", "s")["statistics"]["mean"] == 2.5
    assert document(path, "--tensor", "v", "--rows", "3:")["values"] == [[3], [4]]
    found = document(path, "--tensor", "t", "--rows", "1:2")
    assert found["values"] == [[1 + (12 + index) / 128 for index in range(12)]]
    for arguments, message in [
        (["s", "--rows", "0:1"], "is a scalar"),
        (["v", "--cols", "0:1"], "needs a matrix"),
        (["t", "--cols", "0:1"], "needs a matrix"),
        (["v", "--rows", "3:6"], "outside 0:5"),
        (["v", "--rows", "3:3"], "empty"),
        (["v", "--rows", "4:2"], "empty"),
    ]:
        code, _, err = inspect(path, "--tensor", *arguments)
        assert code == 2
        assert message in err


@pytest.fixture
def bound(write_artifact: Any) -> Path:
    specs = [
        TensorSpec("a", (4, 3), "fp32", "contiguous_le_v1"),
        TensorSpec("b", (2, 3), "bf16", "contiguous_le_v1"),
        TensorSpec("i", (4,), "int32", "contiguous_le_v1"),
    ]
    words = {
        "a": np.arange(12, dtype=np.float32).reshape(4, 3).view(np.uint32),
        "b": np.full((2, 3), 0x3F80, np.uint16),
        "i": np.arange(4, dtype=np.int32),
    }
    bindings = {
        "text/rows": Binding(parts=(Part("a", 3, 6), Part("b", 0, 6), Part("a", 9, 12))),
        "text/flat": Binding(parts=(Part("a", 1, 3), Part("b", 0, 1))),
        "text/mixed": Binding(parts=(Part("a", 0, 3), Part("i", 0, 3))),
        "text/endless": Binding(parts=tuple([Part("a", 0, 12)] * 2)),
        "i": Binding(object="a"),
    }
    path: Path = write_artifact(specs, words, bindings=bindings)
    return path


def test_parameters_are_joined_from_their_parts(document: Any, bound: Path) -> None:
    found = document(bound, "--tensor", "text/rows", "--rows", ":")
    assert found["tensor"] == {
        "name": "text/rows",
        "kind": "parameter",
        "formats": ["bf16", "fp32"],
        "shape": [4, 3],
        "bytes": 6 * 4 + 6 * 2,
    }
    assert found["values"] == [[3, 4, 5], [1, 1, 1], [1, 1, 1], [9, 10, 11]]
    found = document(bound, "--tensor", "text/flat", "--rows", ":")
    assert found["tensor"]["shape"] == [3]
    assert found["values"] == [[1], [2], [1]]


def test_a_parameter_goes_before_an_object_of_its_name(document: Any, bound: Path) -> None:
    assert document(bound, "--tensor", "i")["tensor"]["kind"] == "parameter"
    assert document(bound, "--tensor", "a")["tensor"]["kind"] == "object"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text/mixed", "integers and reals together"),
        ("text/endless", "more than the whole artifact"),
        ("text/row", "did you mean text/rows?"),
    ],
)
def test_parameters_that_have_no_values(name: str, message: str, inspect: Any, bound: Path) -> None:
    code, out, err = inspect(bound, "--tensor", name)
    assert (code, out) == (3, "")
    assert message in err


def test_too_many_values_belong_into_a_file(inspect: Any, builtin: Path) -> None:
    code, out, err = inspect(builtin, "--tensor", "text/token_embedding", "--rows", "0:257")
    assert (code, out) == (2, "")
    assert "ninfer-inspect decode" in err


def test_illegal_words_are_an_error_that_names_object_and_row(
    inspect: Any, conformance: Path
) -> None:
    path = conformance / "malformed/fp8_code_nan.ninfer"
    code, out, err = inspect(path, "--tensor", "w")
    assert (code, out) == (3, "")
    assert "object 'w': illegal fp8" in err


def test_pieces_of_large_tensors_are_joined(document: Any, inspect: Any, builtin: Path) -> None:
    """A tensor of several pieces, whole and from the middle."""
    with open_artifact(builtin) as artifact:
        values = artifact.decode_parameter("text/output_head", (4096, 256)).astype(np.float64)
    found = document(builtin, "--tensor", "text/output_head")["statistics"]
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-9)
    assert found["std"] == pytest.approx(values.std(), rel=1e-9)
    found = document(builtin, "--tensor", "text/output_head", "--cols", "200:205")
    assert np.array_equal(found["values"], values[:, 200:205])
