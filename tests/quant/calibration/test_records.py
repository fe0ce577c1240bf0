from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError, UsageError
from ninfer_quant.calibration.records import (
    CalibrationFile,
    InputStatistics,
    join_calibrations,
    write_calibration,
)


def record(K: int, *, with_hessian: bool = True) -> InputStatistics:
    generator = np.random.default_rng(K)
    root = generator.standard_normal((K, K)).astype(np.float32)
    hessian = root @ root.T
    return InputStatistics(
        np.float32(3.5), hessian.diagonal().copy(), hessian if with_hessian else None
    )


def test_what_was_written_is_read(tmp_path: Path):
    path = tmp_path / "c.safetensors"
    first, second = record(4), record(7, with_hessian=False)
    write_calibration(path, {"text/a": first, "text/b": second}, {"tokens": "12"})
    file = CalibrationFile(path)
    assert file.inputs == ("text/a", "text/b")
    assert file.metadata == {"format": "ninfer-calibration/1", "tokens": "12"}
    assert file.amax("text/b") == np.float32(3.5)
    np.testing.assert_array_equal(file.second_moment("text/b", 7), second.second_moment)
    np.testing.assert_array_equal(file.hessian("text/a", 4), first.hessian)
    assert file.has_hessian("text/a")
    assert not file.has_hessian("text/b")
    with pytest.raises(CheckpointError, match=r"the calibration has no text/b\.hessian"):
        file.hessian("text/b", 7)
    with pytest.raises(CheckpointError, match=r"is F32 \[7\], expected F32 \[8\]"):
        file.second_moment("text/b", 8)


def test_joining_keeps_every_tensor(tmp_path: Path):
    parts = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    write_calibration(parts[0], {"a": record(3)}, {})
    write_calibration(parts[1], {"b": record(5)}, {})
    joined, whole = tmp_path / "joined.safetensors", tmp_path / "whole.safetensors"
    join_calibrations(joined, parts, {"rows": "2"})
    write_calibration(whole, {"a": record(3), "b": record(5)}, {"rows": "2"})
    found, expected = SafetensorsCheckpoint(joined), SafetensorsCheckpoint(whole)
    assert found.names == expected.names
    for name in found.names:
        np.testing.assert_array_equal(found.read(name), expected.read(name))


def test_an_existing_file_stays_unless_it_may_be_replaced(tmp_path: Path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists already"):
        write_calibration(path, {"a": record(3)}, {})
    assert path.read_bytes() == b"mine"
    write_calibration(path, {"a": record(3)}, {}, force=True)
    assert CalibrationFile(path).inputs == ("a",)
    assert list(tmp_path.iterdir()) == [path]


def test_other_safetensors_are_no_calibration(tmp_path: Path, checkpoint: Path):
    with pytest.raises(CheckpointError, match="is no calibration"):
        CalibrationFile(checkpoint / "model.safetensors")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_values_that_cannot_be_statistics_are_refused(tmp_path: Path, bad: float):
    moments = np.array([1, bad, 2], np.float32)
    path = tmp_path / "c.safetensors"
    write_calibration(path, {"a": InputStatistics(np.float32(1), moments, None)}, {})
    with pytest.raises(CheckpointError, match="not finite, or negative"):
        CalibrationFile(path).second_moment("a", 3)
