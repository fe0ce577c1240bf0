"""Weights as an artifact stores them, in the order in which kernels read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.models.parameter_source import ArtifactParameters
from ninfer_runtime.ops.gated_linear import GatedWeight
from ninfer_runtime.ops.linear.packed_weight import PackedWeight, packed_bytes
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS
from ninfer_runtime.weights.loaders import GpuLoader, HostLoader, Loader
from ninfer_runtime.weights.staging import BUFFERS, Staging
from ninfer_runtime.weights.stored_rows import (
    StoredRows,
    extents_of_words,
    runs_of,
    stack_rows,
    stacked_shape,
)

if TYPE_CHECKING:
    from ninfer_format import Artifact
    from ninfer_runtime.device.cuda import CudaDevice

TENSOR_DTYPES = {"fp32": DType.FP32, "bf16": DType.BF16}
"""Formats of parameters that no product uses."""

STAGING_BYTES = 64 * 2**20
"""Bytes of a staging buffer: its copy takes a millisecond, far more than it takes to begin one."""

SMALLEST_STAGING_BYTES = 2**20

_MOST_NAMES = 5
"""Parameters that an error names."""

_HINT = (
    "convert the checkpoint with a recipe that stores matrices in one of "
    + ", ".join(RECORD_FORMATS)
    + " and the rest in bf16 or fp32"
)


class PackedWeights:
    """Implements `ninfer_runtime.weights.store.WeightStore`; see there for contracts.

    Matrices keep their words: projections become `PackedWeight`, and what is no projection stays the
    numbers that are stored. A context manager: at its end everything is on the device, and the
    buffers that loading took are given back. The artifact stays open until then.

    Args:
        artifact: The open artifact.
        parameters: What may be asked for.
        device: Where the weights shall lie.
        advance: Called with bytes and a name for each weight that was read; the bytes add up to
            `num_bytes`, unless matrices are stacked that are no whole row tiles.

    Raises:
        ArtifactError: Parameters or uses are not bound, or have another number of elements.
        UnsupportedOpError: Parameters are stored in formats that no kernel reads; one error names
            all of them.
    """

    def __init__(
        self,
        artifact: Artifact,
        parameters: Sequence[LogicalParameter],
        device: Device,
        advance: Callable[[int, str], None] = lambda num_bytes, name: None,
    ) -> None:
        self.device = device
        self._artifact = artifact
        self._source = ArtifactParameters(artifact, parameters)
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._runs = {name: tuple(runs_of(artifact, name)) for name in self._parameters}
        self._advance = advance
        self._loaded: dict[StoredRows, PackedWeight] = {}
        self._check_formats()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish loading."""
        self.close()

    def close(self) -> None:
        """Wait until everything is on the device, and give back what loading took."""
        if "_loader" in self.__dict__:
            self._loader.close()

    # --- weights -------------------------------------------------------------------------------

    def tensor(self, *names: str) -> Tensor:
        """A parameter that is stored as fp32 or bf16, or several, one below the other."""
        runs = [run for name in names for run in self._runs[name]]
        formats = {run.record.format for run in runs}
        dtype = TENSOR_DTYPES.get(formats.pop())
        if formats or dtype is None:
            raise self._unsupported(names, "to be used as numbers of one format, fp32 or bf16")
        shapes = [self._parameters[name].shape for name in names]
        tensor = self._loader.tensor(extents_of_words(runs), stacked_shape(shapes), dtype)
        self._advance(tensor.num_bytes, names[0])
        return tensor

    def projections(self, names: Sequence[str]) -> tuple[PackedWeight, ...]:
        """Matrices, one below the other: one weight for each change of the format."""
        if len(names) == 1:
            return (self.bank(names),)
        return tuple(self._matrix(rows, names) for rows in self._stacks(names))

    def gated(self, gate: str, up: str) -> GatedWeight:
        """One weight whose rows take turns, where both have one format."""
        names = (gate, up)
        stacks = self._stacks(names)
        if len(stacks) > 1 or not stacks[0].can_take_turns:
            return GatedWeight(tuple(self._matrix(rows, names) for rows in stacks))
        return GatedWeight((self._matrix(replace(stacks[0], in_turns=True), names),), in_turns=True)

    def table(self, name: str) -> PackedWeight:
        """A matrix as it is multiplied: its rows are gathered from records."""
        return self.bank([name])

    def bank(self, names: Sequence[str]) -> PackedWeight:
        """Matrices of one format, one below the other."""
        stacks = self._stacks(names)
        if len(stacks) > 1:
            raise self._unsupported(names, "as one matrix in several formats")
        return self._matrix(stacks[0], names)

    def is_shared(self, name: str, other: str) -> bool:
        """Whether both are bound to the same elements."""
        return self._source.is_shared(name, other)

    # --- memory --------------------------------------------------------------------------------

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all weights on the device; what several parameters are bound to counts once."""
        sizes = {self._runs[name]: self._size(name) for name in self._parameters}
        return sum(sizes.values())

    @property
    def loading_bytes(self) -> int:
        """Bytes at the worst moment: staging buffers lie beside the weights."""
        buffers = 0 if self.device.kind == "cpu" else BUFFERS * self._staging_bytes
        return self.num_bytes + buffers

    def _size(self, name: str) -> int:
        parameter, runs = self._parameters[name], self._runs[name]
        formats = {run.record.format for run in runs}
        if parameter.is_projection or not formats <= TENSOR_DTYPES.keys():
            stacks = stack_rows(runs, parameter.shape[-1])
            if all(stack.format in RECORD_FORMATS for stack in stacks):
                return sum(packed_bytes(stack.format, stack.shape) for stack in stacks)
        return sum(extent.length for extent in extents_of_words(runs))

    @property
    def _staging_bytes(self) -> int:
        """Size of a staging buffer; a small model needs no large one."""
        stored = sum(run.record.num_bytes for runs in set(self._runs.values()) for run in runs)
        return min(STAGING_BYTES, max(SMALLEST_STAGING_BYTES, stored))

    # --- loading -------------------------------------------------------------------------------

    @cached_property
    def _loader(self) -> Loader:
        if self.device.kind == "cpu":
            return HostLoader(self._artifact, self.device)
        gpu = cast("CudaDevice", self.device)
        return GpuLoader(self._artifact, gpu, Staging(gpu, self._staging_bytes))

    def _stacks(self, names: Sequence[str]) -> list[StoredRows]:
        runs = [run for name in names for run in self._runs[name]]
        return stack_rows(runs, self._parameters[names[0]].shape[1])

    def _matrix(self, rows: StoredRows, names: Sequence[str]) -> PackedWeight:
        """Load a matrix, unless it is there for another parameter."""
        if rows.format not in RECORD_FORMATS:
            raise self._unsupported(names, f"in {rows.format} to be multiplied")
        weight = self._loaded.get(rows)
        if weight is None:
            weight = self._loaded[rows] = self._loader.matrix(rows)
            self._advance(weight.num_bytes, names[0])
        return weight

    def _check_formats(self) -> None:
        """Refuse all parameters at once that nothing reads as they are stored."""
        known = RECORD_FORMATS.keys() | TENSOR_DTYPES.keys()
        problems = [
            name
            for name, runs in self._runs.items()
            if any(run.record.format not in known for run in runs)
        ]
        if problems:
            raise self._unsupported(problems, "as they are stored")

    def _unsupported(self, names: Sequence[str], what: str) -> UnsupportedOpError:
        shown = ", ".join(
            f"{name} in {'/'.join(dict.fromkeys(run.record.format for run in self._runs[name]))}"
            for name in names[:_MOST_NAMES]
        )
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return UnsupportedOpError(
            "linear", self.device.kind, detail=f"parameters {what}: {shown}{more}", hint=_HINT
        )
