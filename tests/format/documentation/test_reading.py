"""The reader of reading.md, run on real artifacts and compared with `ninfer_format`."""

from __future__ import annotations

import ast
import doctest
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import open_artifact
from ninfer_format.dtypes import FORMATS

ROOT = Path(__file__).parents[3]
BUILTIN = ROOT / "packages/ninfer-runtime/src/ninfer_runtime/builtin_model/tiny-qwen3_5.ninfer"


@pytest.fixture(scope="module")
def reader(pages: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("reading") / "reading.py"
    path.write_text("".join(pages.code("reading", "python")), encoding="utf-8")
    return runpy.run_path(str(path))


def test_the_reader_needs_thirty_lines_numpy_and_the_standard_library(pages: Any) -> None:
    blocks = pages.code("reading", "python")
    lines = [line for line in blocks[0].splitlines() if line.strip()]
    assert len(lines) <= 30
    imported = set()
    for node in ast.walk(ast.parse("".join(blocks))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        assert not isinstance(node, ast.ImportFrom)
    assert imported - sys.stdlib_module_names == {"numpy"}


@pytest.mark.parametrize(
    "path",
    [
        BUILTIN,
        *(
            ROOT / f"tests/data/conformance/artifacts/{name}.ninfer"
            for name in (
                "all_formats/all_formats",
                "minimal/minimal",
                "multipart/multipart",
                "multipart/reserve_growth",
                "multipart/exact_fit_minus_1",
                "tolerated/gaps",
                "tolerated/odd_segments",
                "tolerated/spelling",
                "legacy/tiny_v3",
            )
        ),
    ],
    ids=lambda path: path.stem,
)
def test_the_reader_reads_what_ninfer_format_reads(path: Path, reader: dict[str, Any]) -> None:
    directory, payload = reader["open_artifact"](path)
    with open_artifact(path) as artifact:
        for entry in directory["objects"]:
            data = reader["read_object"](payload, entry)
            assert data.tobytes() == artifact.read_object(entry["id"]).tobytes()
            if entry["kind"] == "tensor":
                values = reader["DECODERS"][entry["format"]](data, entry)
                compare(values.reshape(entry["shape"]), artifact.decode_object(entry["id"]))
        assert list(directory["bindings"]) == list(artifact.directory.bindings)
        for name in directory["bindings"]:
            found = reader["read_parameter"](directory, payload, name)
            compare(found, artifact.decode_parameter(name).reshape(-1))


def compare(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    if found.dtype == np.float64:
        # The page computes exl3 in float64 with rounding in every sum; ninfer_format rounds once.
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=2.0**-24, atol=1e-11 * scale)
    else:
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


def test_the_reader_covers_every_format(reader: dict[str, Any]) -> None:
    assert set(reader["DECODERS"]) == set(FORMATS)


def test_the_session_in_the_page_is_what_python_answers(
    pages: Any, reader: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = pages.code("reading", "pycon")
    test = doctest.DocTestParser().get_doctest(session, dict(reader), "reading", None, None)
    assert [bool(example.want) for example in test.examples] == [False, False, True, True]
    monkeypatch.chdir(BUILTIN.parent)
    messages: list[str] = []
    result = doctest.DocTestRunner().run(test, out=messages.append)
    assert result.failed == 0, "".join(messages)
