"""Running a calibration layer by layer, so that it can be resumed.

Beside the file to be there is a folder ``FILE.work`` until it is finished. It holds the settings,
the records of every finished layer, and the hidden rows after the last of them, without those that
were excluded. What a run finds there it does not do again; the result is the same.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np

from ninfer_format.commandline import new_output, refuse_existing
from ninfer_format.errors import UsageError
from ninfer_quant.calibration.corpus_rows import CorpusRows
from ninfer_quant.calibration.expert_pools import Coverage
from ninfer_quant.calibration.input_recorder import InputRecorder
from ninfer_quant.calibration.model import CalibratedModel
from ninfer_quant.calibration.records import (
    CalibrationFile,
    join_calibrations,
    write_calibration,
)
from ninfer_quant.errors import ConversionError, NonFiniteInputError
from ninfer_quant.pipeline.staging import disk_full_as_error
from ninfer_quant.work_folder import locked_work_folder

Advance = Callable[[int, str], None]
Execute = Callable[[np.ndarray], np.ndarray]
Rows = dict[int, np.ndarray]
"""Hidden rows ``[T, D]`` by the number of their row of the corpus."""
OnNonFinite = Literal["stop", "exclude"]
"""What happens where a row of the corpus makes the model compute NaN or infinity."""
_MOST_EXCLUDED = 0.1
"""Part of the rows that may be excluded."""
_HEAD, _HEAD_PREFIX = "head", "text/final_"


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """How a calibration runs.

    Attributes:
        output: The file to be.
        force: Replace an existing file.
        keeps_hessians: Keep second moments between columns, which error feedback needs. They are
            K² numbers for every input of width K.
        on_nonfinite: Stop, or leave the row out from that layer on.
    """

    output: Path
    force: bool = False
    keeps_hessians: bool = True
    on_nonfinite: OnNonFinite = "stop"

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
        The metadata of the file. Beside the settings they say how many rows were excluded, how many
        experts there are, and how many of them saw no token, or so few that others stand in for them.

    Raises:
        UsageError: The file exists, or the work folder is of another calibration, in use, or of one
            that excluded rows while these options do not.
        NonFiniteInputError: An activation is not finite; layer and site are named.
        ConversionError: More than a tenth of the rows would be excluded.
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
        parts, excluded = _Job(model, corpus, options, advance).run()
        metadata = {key: value for key, value in settings.items() if key != "model_identity"}
        metadata |= {"on_nonfinite": options.on_nonfinite, "excluded_rows": str(excluded)}
        metadata |= _coverage_of(parts)
        join_calibrations(options.output, parts, metadata, force=options.force)
        shutil.rmtree(folder)
    return metadata


class _Job:
    def __init__(
        self,
        model: CalibratedModel,
        corpus: CorpusRows,
        options: CalibrationOptions,
        advance: Advance,
    ) -> None:
        self._model = model
        self._corpus = corpus
        self._options = options
        self._advance = advance

    def run(self) -> tuple[list[Path], int]:
        """Do what is left; returns the records of all layers and the head, and what was excluded."""
        folder, text = self._options.work_folder, self._model.text
        records = [_record_path(folder, layer) for layer in range(text.num_layers)]
        begin, rows = _resume(folder, records)
        self._advance(begin * len(self._corpus.rows), "resumed" if begin else "")
        if rows is None:
            rows = dict(enumerate(text.embed(self._corpus.rows)))
        self._check_resumed(len(self._corpus.rows) - len(rows))
        for layer in range(begin, text.num_layers):
            recorder = self._recorder()
            self._read(rows, recorder, text.load_layer(layer, recorder), f"layer {layer}")
            self._write(records[layer], recorder, f"text/layers/{layer}/")
            _save_rows(folder, layer + 1, rows)
        recorder = self._recorder()

        def observe_head(row: np.ndarray) -> np.ndarray:
            text.observe_head(row, recorder)
            return row

        self._read(rows, recorder, observe_head, _HEAD)
        head = folder / f"{_HEAD}.safetensors"
        self._write(head, recorder, _HEAD_PREFIX)
        return [*records, head], len(self._corpus.rows) - len(rows)

    def _recorder(self) -> InputRecorder:
        return InputRecorder(keeps_hessian=self._options.keeps_hessians)

    def _read(self, rows: Rows, recorder: InputRecorder, execute: Execute, item: str) -> None:
        """Put what a layer makes of each row in its place; rows that are excluded go."""
        self._advance(len(self._corpus.rows) - len(rows), item)
        for number in list(rows):
            recorder.row = number
            try:
                rows[number] = execute(rows[number])
                recorder.keep_row()
            except NonFiniteInputError as error:
                if self._options.on_nonfinite == "stop":
                    raise
                recorder.drop_row()
                del rows[number]
                self._check_excluded(len(self._corpus.rows) - len(rows), error)
            self._advance(1, item)

    def _check_resumed(self, excluded: int) -> None:
        """A run that stops at the first bad row cannot go on with one that left some out."""
        if excluded and self._options.on_nonfinite == "stop":
            raise UsageError(
                f"the work folder is of a calibration that excluded rows: {excluded}",
                path=self._options.work_folder,
                hint="remove the folder to begin anew, or exclude rows to resume it",
            )

    def _check_excluded(self, excluded: int, last: NonFiniteInputError) -> None:
        total = len(self._corpus.rows)
        if excluded > _MOST_EXCLUDED * total:
            raise ConversionError(
                f"{excluded} of {total} rows make the model compute what is not finite, the last: "
                f"{last}",
                hint="check the weights of the model",
            ) from last

    def _write(self, path: Path, recorder: InputRecorder, prefix: str) -> None:
        """Keep the records of the inputs whose names begin with a prefix."""
        inputs = self._model.inputs.items()
        expected = {name: K for name, K in inputs if name.startswith(prefix)}
        records, coverage = recorder.statistics(expected)
        metadata = {key: str(value) for key, value in asdict(coverage).items()}
        write_calibration(path, records, metadata, force=True)


def _coverage_of(parts: Sequence[Path]) -> dict[str, str]:
    """The coverage of all experts, from what the records of the layers say."""
    total: Counter[str] = Counter()
    for part in parts:
        metadata = CalibrationFile(part).metadata
        total.update({field.name: int(metadata[field.name]) for field in fields(Coverage)})
    return {key: str(value) for key, value in total.items()}


# --- the work folder -------------------------------------------------------------------------


def _record_path(folder: Path, layer: int) -> Path:
    return folder / f"layer-{layer:04d}.safetensors"


def _rows_path(folder: Path, layer: int) -> Path:
    return folder / f"rows-{layer:04d}.npz"


def _resume(folder: Path, records: Sequence[Path]) -> tuple[int, Rows | None]:
    """The first layer that is not done, and the rows before it; None for the very first."""
    for layer in range(len(records), 0, -1):
        saved = _rows_path(folder, layer)
        if saved.exists() and all(record.exists() for record in records[:layer]):
            with np.load(saved, allow_pickle=False) as arrays:
                rows = np.split(arrays["rows"], np.cumsum(arrays["lengths"])[:-1])
                return layer, dict(zip(arrays["numbers"].tolist(), rows, strict=True))
    return 0, None


def _save_rows(folder: Path, layer: int, rows: Rows) -> None:
    """Keep the rows before a layer instead of those before the last one."""
    with new_output(_rows_path(folder, layer), force=True) as file:
        np.savez(
            file,
            rows=np.concatenate(list(rows.values())),
            lengths=np.array([len(row) for row in rows.values()]),
            numbers=np.array(list(rows)),
        )
    _rows_path(folder, layer - 1).unlink(missing_ok=True)
