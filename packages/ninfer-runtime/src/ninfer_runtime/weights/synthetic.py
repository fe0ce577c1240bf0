"""Random weights of a model's geometry and formats, made on the GPU: speed without a download."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import prod, sqrt
from typing import TYPE_CHECKING, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_VALUES
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import FLOAT, POINTER, WORD, Geometry
from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import STORAGE, DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.ops.gated_linear import GatedWeight
from ninfer_runtime.ops.linear.packed_weight import PackedWeight, packed_bytes
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, ROWS, RecordFormat
from ninfer_runtime.weights.packed import TENSOR_DTYPES
from ninfer_runtime.weights.recipe_formats import recipe_formats
from ninfer_runtime.weights.stored_rows import stacked_shape

if TYPE_CHECKING:
    from ninfer_runtime.device.cuda import CudaDevice

_THREADS = 256

NORM_SPREAD = 0.02
"""Standard deviation of the weights of norms, around what leaves a row as it is."""


class SyntheticWeights:
    """Implements `ninfer_runtime.weights.store.WeightStore`; see there for contracts.

    Matrices have random words with values of standard deviation ``1 / sqrt(K)``, so that activations
    keep their size; the same seed gives the same values. No two parameters are shared.

    Args:
        parameters: What may be asked for.
        formats: Format of each parameter, or the name of a recipe (recipe_formats.py).
        device: A GPU.
        seed: Of everything random.
        advance: Called with bytes and a name for each weight that was made.

    Raises:
        UsageError: The recipe is not known.
        UnsupportedOpError: The device is no GPU, or no kernel reads a format.
    """

    def __init__(
        self,
        parameters: Sequence[LogicalParameter],
        formats: Mapping[str, str] | str,
        device: Device,
        *,
        seed: int = 0,
        advance: Callable[[int, str], None] = lambda num_bytes, name: None,
    ) -> None:
        if device.kind == "cpu":
            raise UnsupportedOpError("random_records", device.kind, detail="synthetic weights")
        self.device = device
        self._parameters = {parameter.name: parameter for parameter in parameters}
        known = recipe_formats(formats, parameters) if isinstance(formats, str) else formats
        self._formats = {parameter.name: known[parameter.name] for parameter in parameters}
        for name, found in self._formats.items():
            if found not in RECORD_FORMATS and found not in TENSOR_DTYPES:
                raise self._unsupported(name, "as weights")
        self._seed = seed
        self._advance = advance

    def tensor(self, *names: str) -> Tensor:
        """A parameter, or several one below the other, whose values do no harm in its place."""
        dtype = TENSOR_DTYPES.get(self._formats[names[0]])
        if dtype is None:
            raise self._unsupported(names[0], "to be used as numbers")
        rng = np.random.default_rng((self._seed, crc32(names[0].encode())))
        shape = stacked_shape([self._parameters[name].shape for name in names])
        values = small_values(self._parameters[names[0]], shape, rng)
        tensor = self.device.from_host(values.astype(np.float32), dtype)
        self._advance(tensor.num_bytes, names[0])
        return tensor

    def projections(self, names: Sequence[str]) -> tuple[PackedWeight, ...]:
        """Matrices, one below the other: one weight for each change of the format."""
        groups = groupby(names, key=self._formats.__getitem__)
        return tuple(self._matrix(weight_format, list(group)) for weight_format, group in groups)

    def gated(self, gate: str, up: str) -> GatedWeight:
        """One weight whose rows take turns, where both have one format."""
        matrices = self.projections([gate, up])
        return GatedWeight(
            matrices, in_turns=len(matrices) == 1 and matrices[0].shape[0] % ROWS == 0
        )

    def table(self, name: str) -> PackedWeight:
        """A matrix as it is multiplied: its rows are gathered from records."""
        return self.bank([name])

    def bank(self, names: Sequence[str]) -> PackedWeight:
        """Matrices of one format, one below the other."""
        formats = sorted({self._formats[name] for name in names})
        if len(formats) > 1:
            detail = f"a bank of {names[0]!r} and others in several formats ({', '.join(formats)})"
            raise UnsupportedOpError("linear", self.device.kind, detail=detail)
        return self._matrix(formats[0], names)

    def is_shared(self, name: str, other: str) -> bool:
        """Whether both are one parameter."""
        return name == other

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights on the device."""
        return sum(map(self._size, self._parameters.values()))

    @property
    def loading_bytes(self) -> int:
        """Bytes at the worst moment: nothing lies beside the weights."""
        return self.num_bytes

    def _size(self, parameter: LogicalParameter) -> int:
        weight_format, shape = self._formats[parameter.name], parameter.shape
        if len(shape) == 2 and (parameter.is_projection or weight_format not in TENSOR_DTYPES):
            return packed_bytes(weight_format, (shape[0], shape[1]))
        return prod(shape) * STORAGE[TENSOR_DTYPES[weight_format]].itemsize

    def _matrix(self, weight_format: str, names: Sequence[str]) -> PackedWeight:
        if weight_format not in RECORD_FORMATS:
            raise self._unsupported(names[0], "to be multiplied")
        rows = sum(self._parameters[name].shape[0] for name in names)
        shape = rows, self._parameters[names[0]].shape[1]
        seed = self._seed << 32 | crc32(names[0].encode())
        weight = random_weight(cast("CudaDevice", self.device), weight_format, shape, seed)
        self._advance(weight.num_bytes, names[0])
        return weight

    def _unsupported(self, name: str, what: str) -> UnsupportedOpError:
        detail = f"{name} in {self._formats[name]} {what}"
        return UnsupportedOpError("linear", self.device.kind, detail=detail)


def random_weight(
    device: CudaDevice, weight_format: str, shape: tuple[int, int], seed: int
) -> PackedWeight:
    """A weight [N, K] of random words; its values have the standard deviation ``1 / sqrt(K)``."""
    record_format = RECORD_FORMATS[weight_format]
    data = device.empty(record_format.records_shape(shape), DType.UINT8).array
    factor = 1 / (sqrt(shape[1]) * word_spread(record_format))
    row_scale = None
    if record_format.has_row_scale:
        row_scale = device.from_host(np.full(shape[0], factor, np.float32)).array
    count = data.size // 16
    device.launch(
        random_records_kernel(record_format),
        Geometry(-(-count // _THREADS), _THREADS),
        [(data.data.ptr, POINTER), (count, WORD), (seed, WORD), (factor, FLOAT)],
    )
    return PackedWeight(weight_format, shape, data, row_scale, device)


def random_records_kernel(record_format: RecordFormat) -> Kernel:
    """The kernel that makes records of random words."""
    name = f"ninfer::random_records_kernel<{record_format.number}>"
    return Kernel("weights/random_records.cu", name)


KERNELS = frozenset(map(random_records_kernel, RECORD_FORMATS.values()))


def word_spread(record_format: RecordFormat) -> float:
    """Standard deviation of the values of random words, without what scales them all alike."""
    name, bits = record_format.name, record_format.code_bits
    if name == "bf16":
        return 1.0
    if name == "nvfp4":
        return sqrt(np.mean(E2M1_VALUES**2) * np.mean(E4M3FN_VALUES[0x30:0x40] ** 2))
    if name == "fp8_e4m3fn_row_bf16":
        return sqrt(np.mean(E4M3FN_VALUES[np.isfinite(E4M3FN_VALUES)] ** 2))
    scales = 0.75**2 + 0.75 * 0.5 + 0.5**2 / 3  # uniform from 0.75 to 1.25
    return sqrt((4.0**bits + 2) / 12 * scales)


def small_values(
    parameter: LogicalParameter, shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Values like those of trained models for parameters that are used as numbers.

    Args:
        parameter: The first of them.
        shape: Of all of them together.
        rng: Where the values come from.
    """
    if parameter.is_projection:
        return rng.normal(0, 1 / sqrt(shape[1]), shape)
    role = parameter.name.rsplit("/", 1)[-1]
    if role == "a_log":
        return np.log(rng.uniform(1, 16, shape))
    if role == "dt_bias":  # what softplus makes 0.001 to 0.1 of
        step = np.exp(rng.uniform(np.log(0.001), np.log(0.1), shape))
        return np.log(np.expm1(step))
    if role == "convolution":
        return rng.normal(0, 1 / sqrt(shape[0]), shape)
    # Norms are stored relative to one, but for the one behind Gated DeltaNet.
    mean = 1.0 if parameter.name.endswith("/gdn/norm") else 0.0
    return rng.normal(mean, NORM_SPREAD, shape)
