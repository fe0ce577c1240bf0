from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.models.sequences import Sequence

from ninfer_format import SafetensorsCheckpoint, open_artifact
from ninfer_format.errors import ExitCode, UsageError
from ninfer_quant.calibration import job
from ninfer_quant.calibration.corpus_rows import CorpusRows
from ninfer_quant.calibration.job import CalibrationOptions, calibrate, work_steps
from ninfer_quant.calibration.model import CalibratedModel, open_model
from ninfer_quant.calibration.records import CalibrationFile
from ninfer_quant.errors import ConversionError, DiskSpaceError
from ninfer_quant.work_folder import locked_work_folder
from ninfer_runtime.device import get_device
from ninfer_runtime.models.architecture import LayeredText, ObserveInput, TextLayer
from ninfer_runtime.models.registry import load_model

HEAD = "text/final_hidden"


def ignore(steps: int, item: str) -> None:
    pass


# --- what is recorded ------------------------------------------------------------------------


def test_every_input_of_a_projection_has_one_record(calibrated: Path, direct: Path):
    with open_artifact(direct) as artifact:
        used = {use.input for use in artifact.directory.uses if use.input.startswith("text/")}
    assert set(CalibrationFile(calibrated).inputs) == used


def test_the_records_are_those_of_the_running_model(
    calibrated: Path, corpus: CorpusRows, direct: Path
):
    """The head's input is what `forward` returns, so the engine's own model tells it."""
    with open_artifact(direct) as artifact:
        running = load_model(artifact, get_device("cpu"))
    rows = []
    for ids in corpus.rows:
        hidden = Sequence(running, len(ids)).forward(ids)
        rows.append(hidden.device.to_host(hidden))
    inputs = np.concatenate(rows).astype(np.float64)
    file = CalibrationFile(calibrated)
    K = inputs.shape[1]
    assert file.amax(HEAD) == pytest.approx(np.abs(inputs).max(), rel=1e-4)
    np.testing.assert_allclose(
        file.second_moment(HEAD, K), np.square(inputs).mean(axis=0), rtol=1e-3
    )
    expected = inputs.T @ inputs / len(inputs)
    np.testing.assert_allclose(file.hessian(HEAD, K), expected, atol=1e-3 * np.abs(expected).max())


def test_moments_fit_together(calibrated: Path):
    file = CalibrationFile(calibrated)
    tensors = SafetensorsCheckpoint(calibrated)
    for name in file.inputs:
        (K,) = tensors.info(f"{name}.second_moment").shape
        moments, hessian = file.second_moment(name, K), file.hessian(name, K)
        np.testing.assert_array_equal(hessian.diagonal(), moments)
        np.testing.assert_allclose(hessian, hessian.T, atol=1e-5 * moments.max())
        assert np.linalg.eigvalsh(hessian.astype(np.float64))[0] > -1e-4 * moments.max()
        assert moments.max() <= file.amax(name) ** 2 * (1 + 1e-6)


def test_metadata_tell_where_the_numbers_come_from(calibrated: Path, corpus: CorpusRows):
    metadata = CalibrationFile(calibrated).metadata
    assert metadata["corpus"] == "short"
    assert metadata["corpus_sha256"] == corpus.identity
    assert (metadata["rows"], metadata["tokens"]) == ("3", str(corpus.num_tokens))


def test_an_artifact_and_its_checkpoint_see_the_same(
    calibrated: Path, corpus: CorpusRows, direct: Path, tmp_path: Path
):
    path = tmp_path / "c.safetensors"
    with open_model(direct) as opened:
        calibrate(opened, corpus, CalibrationOptions(path, keeps_hessians=False), ignore)
    file, other = CalibrationFile(path), CalibrationFile(calibrated)
    assert file.inputs == other.inputs
    assert not any(file.has_hessian(name) for name in file.inputs)
    for name in file.inputs:
        assert file.amax(name) == pytest.approx(other.amax(name), rel=1e-5)


# --- interruption ----------------------------------------------------------------------------


def interrupt_at(step: int) -> Callable[[int, str], None]:
    done = 0

    def advance(steps: int, item: str) -> None:
        nonlocal done
        done += steps
        if done >= step:
            raise KeyboardInterrupt

    return advance


@pytest.mark.parametrize("steps", [(1,), (8, 20), (3, 6, 25, 26)])
def test_a_resumed_calibration_equals_an_uninterrupted_one(
    model: CalibratedModel,
    corpus: CorpusRows,
    calibrated: Path,
    tmp_path: Path,
    steps: tuple[int, ...],
):
    path = tmp_path / "c.safetensors"
    options = CalibrationOptions(path)
    for step in steps:
        with pytest.raises(KeyboardInterrupt):
            calibrate(model, corpus, options, interrupt_at(step))
        assert [item.name for item in tmp_path.iterdir()] == ["c.safetensors.work"]
        names = sorted(item.name for item in options.work_folder.iterdir())
        layers = (step - 1) // 3
        assert sum(name.startswith("layer-") for name in names) == layers
        assert sum(name.startswith("rows-") for name in names) == min(layers, 1)
        assert len(names) == 1 + layers + min(layers, 1)
    counted: list[tuple[int, str]] = []
    calibrate(model, corpus, options, lambda steps, item: counted.append((steps, item)))
    resumed = (steps[-1] - 1) // 3 * 3
    assert counted[0] == (resumed, "resumed" if resumed else "")
    assert sum(steps for steps, _ in counted) == work_steps(model, corpus)
    assert path.read_bytes() == calibrated.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def test_other_settings_do_not_resume(model: CalibratedModel, corpus: CorpusRows, tmp_path: Path):
    path = tmp_path / "c.safetensors"
    options = CalibrationOptions(path)
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, corpus, options, interrupt_at(4))
    fewer = CorpusRows("short", corpus.rows[:2])
    with pytest.raises(UsageError, match="other settings: corpus_sha256, rows, tokens"):
        calibrate(model, fewer, options, ignore)
    with pytest.raises(UsageError, match="other settings: model_identity"):
        calibrate(replace(model, identity="other"), corpus, options, ignore)
    with pytest.raises(UsageError, match="other settings: hessians"):
        calibrate(model, corpus, CalibrationOptions(path, keeps_hessians=False), ignore)
    settings = options.work_folder / "settings.json"
    assert json.loads(settings.read_text())["rows"] == "3"
    settings.write_text("{")
    with pytest.raises(UsageError, match="other settings"):
        calibrate(model, corpus, options, ignore)


def test_a_work_folder_in_use_is_left_alone(
    model: CalibratedModel, corpus: CorpusRows, tmp_path: Path
):
    options = CalibrationOptions(tmp_path / "c.safetensors")
    options.work_folder.mkdir()
    descriptor = os.open(options.work_folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another calibration is using the work folder"):
        calibrate(model, corpus, options, ignore)
    os.close(descriptor)


def test_two_calibrations_cannot_use_one_work_folder(tmp_path: Path):
    with (
        locked_work_folder(tmp_path, {}, "calibration"),
        pytest.raises(UsageError, match="another calibration is using the work folder"),
        locked_work_folder(tmp_path, {}, "calibration"),
    ):
        pass


def test_a_full_disk_is_a_matter_of_capacity_and_the_work_is_kept(
    model: CalibratedModel, corpus: CorpusRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(job, "join_calibrations", full)
    options = CalibrationOptions(tmp_path / "c.safetensors")
    with pytest.raises(DiskSpaceError, match=r"c\.safetensors: no space left") as caught:
        calibrate(model, corpus, options, ignore)
    assert caught.value.exit_code == ExitCode.CAPACITY
    assert (options.work_folder / "layer-0000.safetensors").exists()


def test_an_existing_file_is_not_replaced(
    model: CalibratedModel, corpus: CorpusRows, tmp_path: Path
):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists already"):
        calibrate(model, corpus, CalibrationOptions(path), ignore)
    assert list(tmp_path.iterdir()) == [path]


# --- values that are not finite ----------------------------------------------------------------


@pytest.fixture
def overflowing(checkpoint_copy: Path, write_safetensors) -> Path:
    """An overflow in the product of layer 1 shows at the input of its down projection."""
    file = checkpoint_copy / "model.safetensors"
    tensors = SafetensorsCheckpoint(file)
    arrays = {name: tensors.read(name).reshape(tensors.info(name).shape) for name in tensors.names}
    (name,) = (name for name in arrays if name.endswith("layers.1.mlp.up_proj.weight"))
    arrays[name][7] = np.full(arrays[name].shape[1], 3e38, ml_dtypes.bfloat16)
    write_safetensors(file, arrays)
    return checkpoint_copy


def test_a_value_that_is_not_finite_stops_at_once_with_its_layer(
    overflowing: Path, corpus: CorpusRows, tmp_path: Path
):
    path = tmp_path / "c.safetensors"
    message = r"text/layers/1/mlp/product: .* column 7 of row 0; NaN: \d+, infinite: \d+ of"
    with (
        open_model(overflowing) as opened,
        np.errstate(all="ignore"),
        pytest.raises(ConversionError, match=message),
    ):
        calibrate(opened, corpus, CalibrationOptions(path), ignore)
    assert not path.exists()
    assert (tmp_path / "c.safetensors.work" / "layer-0000.safetensors").exists()


def test_too_many_rows_that_are_not_finite_stop_all_the_same(
    overflowing: Path, corpus: CorpusRows, tmp_path: Path
):
    path = tmp_path / "c.safetensors"
    with (
        open_model(overflowing) as opened,
        np.errstate(all="ignore"),
        pytest.raises(ConversionError, match=r"1 of 3 rows .* text/layers/1/mlp/product"),
    ):
        calibrate(opened, corpus, CalibrationOptions(path, on_nonfinite="exclude"), ignore)
    assert not path.exists()


@dataclass(frozen=True)
class Poisoned:
    """The layers of a model, of which one computes NaN from some rows; a `LayeredText`."""

    layers: LayeredText
    bad_layer: int
    lengths: frozenset[int]

    def __getattr__(self, name: str):
        return getattr(self.layers, name)

    def load_layer(self, index: int, observe: ObserveInput) -> TextLayer:
        execute = self.layers.load_layer(index, observe)

        def poisoned(rows: np.ndarray) -> np.ndarray:
            is_bad = index == self.bad_layer and len(rows) in self.lengths
            return execute(rows * np.float32(np.nan) if is_bad else rows)

        return poisoned


def test_a_calibration_that_stopped_goes_on_without_the_row(
    model: CalibratedModel, corpus: CorpusRows, tmp_path: Path
):
    """What was done before the bad row is not done again; back to stopping there is no way."""
    rows = CorpusRows("rows", (*[corpus.rows[0]] * 9, corpus.rows[1]))
    poisoned = replace(model, text=Poisoned(model.text, 2, frozenset((len(corpus.rows[1]),))))
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    exclude = CalibrationOptions(resumed, on_nonfinite="exclude")
    with np.errstate(all="ignore"):
        calibrate(poisoned, rows, replace(exclude, output=whole), ignore)
        with pytest.raises(ConversionError, match="text/layers/2/"):
            calibrate(poisoned, rows, CalibrationOptions(resumed), ignore)
        steps: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            calibrate(poisoned, rows, exclude, interrupt_at(35))
        with pytest.raises(UsageError, match="excluded rows: 1"):
            calibrate(poisoned, rows, CalibrationOptions(resumed), ignore)
        calibrate(poisoned, rows, exclude, lambda count, item: steps.append(count))
    assert steps[0] == 30
    assert resumed.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("stopped_at", [None, 36, 47])
def test_an_excluded_row_counts_up_to_its_layer_and_no_further(
    model: CalibratedModel, corpus: CorpusRows, tmp_path: Path, stopped_at: int | None
):
    """Eleven rows, of which the third, alone of its length, is lost in layer 2."""
    short, lost = corpus.rows[0], corpus.rows[1]
    rows = [short] * 10
    expected: dict[str, CalibrationFile] = {}
    for name, content in (("without", rows), ("with", [*rows[:2], lost, *rows[2:]])):
        path = tmp_path / f"{name}.safetensors"
        calibrate(model, CorpusRows(name, tuple(content)), CalibrationOptions(path), ignore)
        expected[name] = CalibrationFile(path)
    poisoned = replace(model, text=Poisoned(model.text, 2, frozenset((len(lost),))))
    path = tmp_path / "c.safetensors"
    options = CalibrationOptions(path, on_nonfinite="exclude")
    damaged = CorpusRows("with", (*rows[:2], lost, *rows[2:]))
    if stopped_at is not None:
        with pytest.raises(KeyboardInterrupt), np.errstate(all="ignore"):
            calibrate(poisoned, damaged, options, interrupt_at(stopped_at))
    counted: list[int] = []
    with np.errstate(all="ignore"):
        metadata = calibrate(poisoned, damaged, options, lambda steps, item: counted.append(steps))
    assert metadata["excluded_rows"] == "1"
    assert sum(counted) == work_steps(poisoned, damaged)
    file = CalibrationFile(path)
    for name in file.inputs:
        is_before = name.startswith(("text/layers/0/", "text/layers/1/"))
        same = expected["with" if is_before else "without"]
        assert file.amax(name) == same.amax(name), name
        (K,) = SafetensorsCheckpoint(path).info(f"{name}.second_moment").shape
        np.testing.assert_array_equal(file.hessian(name, K), same.hessian(name, K), err_msg=name)
