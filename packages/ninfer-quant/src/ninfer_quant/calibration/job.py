"""Running a calibration layer by layer, so that it can be resumed.

Beside the file to be there is a folder ``FILE.work`` until it is finished. It holds the settings,
the records of every finished layer, and the hidden rows after the last of them. What a run finds
there it does not do again; the result is the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer_format.commandline import new_output, refuse_existing
from ninfer_quant.calibration.corpus_rows import CorpusRows
from ninfer_quant.calibration.input_recorder import InputRecorder
from ninfer_quant.calibration.model import CalibratedModel
from ninfer_quant.calibration.records import join_calibrations, write_calibration
from ninfer_quant.pipeline.staging import disk_full_as_error
from ninfer_quant.work_folder import locked_work_folder

Advance = Callable[[int, str], None]
_HEAD = "head"


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """How a calibration runs.

    Attributes:
        output: The file to be.
        force: Replace an existing file.
        keeps_hessians: Keep second moments between columns, which error feedback needs. They are
            K² numbers for every input of width K.
    """

    output: Path
    force: bool = False
    keeps_hessians: bool = True

    @property
    def work_folder(self) -> Path:
        """Where unfinished work is kept."""
        return self.output.with_name(f"{self.output.name}.work")


def work_steps(model: CalibratedModel, corpus: CorpusRows) -> int:
    """How much `calibrate` will count: a row in a layer is a step, the head counts as a layer."""
    return (model.text.num_layers + 1) * len(corpus.rows)


def calibrate(
    model: CalibratedModel, corpus: CorpusRows, options: CalibrationOptions, advance: Advance
) -> dict[str, str]:
    """Let a model read a corpus, and write what its projections saw.

    After a failure or an interruption the work folder remains, and nothing of the file.

    Args:
        model: The model.
        corpus: What it reads.
        options: How.
        advance: Counts steps, `work_steps` in all; those that were done before at once.

    Returns:
        The metadata of the file.

    Raises:
        UsageError: The file exists, or the work folder is of another calibration or in use.
        ConversionError: An activation is not finite; layer and site are named.
        DiskSpaceError: The disk is full.
    """
    refuse_existing(options.output, force=options.force)
    settings = {
        "model": model.name,
        "model_identity": model.identity,
        "corpus": corpus.name,
        "corpus_sha256": corpus.identity,
        "rows": str(len(corpus.rows)),
        "tokens": str(corpus.num_tokens),
        "hessians": str(options.keeps_hessians).lower(),
    }
    folder = options.work_folder
    with (
        disk_full_as_error(options.output),
        locked_work_folder(folder, settings, "calibration"),
    ):
        parts = _run_layers(model, corpus, options, advance)
        metadata = {key: value for key, value in settings.items() if key != "model_identity"}
        join_calibrations(options.output, parts, metadata, force=options.force)
        shutil.rmtree(folder)
    return metadata


def _run_layers(
    model: CalibratedModel, corpus: CorpusRows, options: CalibrationOptions, advance: Advance
) -> list[Path]:
    """Run what is left to do; returns the records of all layers and of the head."""
    folder, text = options.work_folder, model.text
    lengths = [len(row) for row in corpus.rows]
    records = [_record_path(folder, layer) for layer in range(text.num_layers)]
    begin, rows = _resume(folder, records, lengths)
    advance(begin * len(lengths), "resumed" if begin else "")
    if rows is None:
        rows = text.embed(corpus.rows)
    for layer in range(begin, text.num_layers):
        recorder = InputRecorder(keeps_hessian=options.keeps_hessians)
        execute = text.load_layer(layer, recorder)
        for index, row in enumerate(rows):
            recorder.row = index
            rows[index] = execute(row)
            advance(1, f"layer {layer}")
        write_calibration(records[layer], recorder.statistics(), {}, force=True)
        _save_rows(folder, layer + 1, rows)
    recorder = InputRecorder(keeps_hessian=options.keeps_hessians)
    for index, row in enumerate(rows):
        recorder.row = index
        text.observe_head(row, recorder)
        advance(1, _HEAD)
    head = folder / f"{_HEAD}.safetensors"
    write_calibration(head, recorder.statistics(), {}, force=True)
    return [*records, head]


# --- the work folder -------------------------------------------------------------------------


def _record_path(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:04d}.safetensors"


def _rows_path(folder: Path, layer: int) -> Path:
    return folder / f"rows-{layer:04d}.npy"


def _resume(
    folder: Path, records: Sequence[Path], lengths: Sequence[int]
) -> tuple[int, list[np.ndarray] | None]:
    """The first layer that is not done, and the rows before it; None for the very first."""
    for layer in range(len(records), 0, -1):
        saved = _rows_path(folder, layer)
        if saved.exists() and all(record.exists() for record in records[:layer]):
            ends = np.cumsum(lengths)[:-1]
            return layer, list(np.split(np.load(saved, allow_pickle=False), ends))
    return 0, None


def _save_rows(folder: Path, layer: int, rows: Sequence[np.ndarray]) -> None:
    """Keep the rows before a layer instead of those before the last one."""
    with new_output(_rows_path(folder, layer), force=True) as file:
        np.save(file, np.concatenate(rows), allow_pickle=False)
    _rows_path(folder, layer - 1).unlink(missing_ok=True)
