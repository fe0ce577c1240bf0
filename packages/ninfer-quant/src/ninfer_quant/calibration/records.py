"""The file that a calibration leaves: statistics of every input of a projection.

It is a Safetensors file. For an input such as ``text/layers/3/ffn_input``, of width K, it has

- ``INPUT.amax``, scalar: the largest magnitude seen,
- ``INPUT.second_moment``, ``[K]``: the mean of the squares a², and
- ``INPUT.hessian``, ``[K, K]``: the mean of a·aᵀ, whose diagonal is the second moment; it may be
  left out,

all F32. Projections whose input is the same tensor share one record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.commandline import new_output
from ninfer_format.errors import CheckpointError
from ninfer_quant.calibration.tensor_file import write_tensors

FILE_FORMAT = "ninfer-calibration/1"
"""Value of ``format`` in the metadata."""
_AMAX, _SECOND_MOMENT, _HESSIAN = ".amax", ".second_moment", ".hessian"


@dataclass(frozen=True, eq=False, slots=True)
class InputStatistics:
    """What was seen at one input of width K.

    Attributes:
        amax: Largest magnitude.
        second_moment: Mean squares, float32 ``[K]``.
        hessian: Mean of a·aᵀ, float32 ``[K, K]``; None if it was not asked for.
    """

    amax: np.float32
    second_moment: np.ndarray
    hessian: np.ndarray | None


class CalibrationFile:
    """An open calibration; tensors are read when they are asked for.

    Args:
        path: The file.

    Raises:
        CheckpointError: It is no calibration, or it is damaged.
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = SafetensorsCheckpoint(path)
        self.metadata: Mapping[str, str] = self._tensors.metadata
        if self.metadata.get("format") != FILE_FORMAT:
            raise CheckpointError(
                f"is no calibration: its metadata lack format {FILE_FORMAT}",
                path=path,
                hint="make one with ninfer-quant calibrate",
            )
        self.inputs = tuple(
            name.removesuffix(_AMAX) for name in self._tensors.names if name.endswith(_AMAX)
        )

    def amax(self, input_name: str) -> np.float32:
        """Largest magnitude of an input.

        Raises:
            CheckpointError: The file has no such input, or a wrong value; the same below.
        """
        return np.float32(self._read(input_name, _AMAX, ())[()])

    def second_moment(self, input_name: str, K: int) -> np.ndarray:
        """Mean squares of an input of width K: float32 ``[K]``."""
        return self._read(input_name, _SECOND_MOMENT, (K,))

    def hessian(self, input_name: str, K: int) -> np.ndarray:
        """Mean of a·aᵀ of an input of width K: float32 ``[K, K]``."""
        return self._read(input_name, _HESSIAN, (K, K))

    def has_hessian(self, input_name: str) -> bool:
        """Whether `hessian` knows an input."""
        return input_name + _HESSIAN in self._tensors

    def _read(self, input_name: str, part: str, shape: tuple[int, ...]) -> np.ndarray:
        name = input_name + part
        if name not in self._tensors:
            raise CheckpointError(
                f"the calibration has no {name}",
                path=self.path,
                tensors=(name,),
                hint="calibrate the model that is converted, with everything that is needed",
            )
        info = self._tensors.info(name)
        if info.dtype != "F32" or info.shape != shape:
            raise CheckpointError(
                f"{name} is {info.dtype} {list(info.shape)}, expected F32 {list(shape)}",
                path=self.path,
                tensors=(name,),
                hint="is it the calibration of another model?",
            )
        values = self._tensors.read(name)
        if not (np.isfinite(values).all() and (part == _HESSIAN or (values >= 0).all())):
            raise CheckpointError(
                f"{name} has a value that is not finite, or negative",
                path=self.path,
                tensors=(name,),
            )
        return values.reshape(shape)


def write_calibration(
    path: Path,
    records: Mapping[str, InputStatistics],
    metadata: Mapping[str, str],
    *,
    force: bool = False,
) -> None:
    """Write a calibration; it appears whole or not at all.

    Args:
        path: The file to be.
        records: Statistics by name of the input.
        metadata: What else is known; ``format`` is added.
        force: Whether an existing file may be replaced.

    Raises:
        UsageError: It exists and is not to be replaced.
        OSError: It cannot be written.
    """
    tensors = {
        name + part: np.asarray(values, "<f4")
        for name, record in records.items()
        for part, values in _parts(record)
    }
    shapes = {name: values.shape for name, values in tensors.items()}
    with new_output(path, force=force) as file:
        write_tensors(file, "F32", shapes, tensors.__getitem__, _described(metadata))


def join_calibrations(
    path: Path, parts: Sequence[Path], metadata: Mapping[str, str], *, force: bool = False
) -> None:
    """Write the records of several calibrations as one, one tensor in memory at a time.

    Args:
        path: The file to be.
        parts: Calibrations of different inputs.
        metadata: What is known of all of them together; ``format`` is added.
        force: Whether an existing file may be replaced.

    Raises:
        CheckpointError: A part is damaged.
        UsageError: The file exists and is not to be replaced.
        OSError: A file cannot be read or written.
    """
    sources: dict[str, SafetensorsCheckpoint] = {}
    for part in parts:
        checkpoint = SafetensorsCheckpoint(part)
        sources |= dict.fromkeys(checkpoint.names, checkpoint)
    shapes = {name: source.info(name).shape for name, source in sources.items()}
    with new_output(path, force=force) as file:
        write_tensors(
            file, "F32", shapes, lambda name: sources[name].read(name), _described(metadata)
        )


def _parts(record: InputStatistics) -> list[tuple[str, np.ndarray]]:
    parts = [(_AMAX, np.asarray(record.amax)), (_SECOND_MOMENT, record.second_moment)]
    return parts if record.hessian is None else [*parts, (_HESSIAN, record.hessian)]


def _described(metadata: Mapping[str, str]) -> dict[str, str]:
    return {"format": FILE_FORMAT, **metadata}
