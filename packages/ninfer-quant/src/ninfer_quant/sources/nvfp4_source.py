"""nvfp4 matrices whose codes lie two in a byte and whose block scales lie row by row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from ninfer_format import Nvfp4Words, SafetensorsCheckpoint
from ninfer_format.codecs.nibbles import unpack_nibbles
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.decoded import DecodedSource
from ninfer_quant.sources.encoded import EncodedSource
from ninfer_quant.sources.scalars import Kind
from ninfer_quant.sources.words import NVFP4_GROUP

ReadDivisor = Callable[[SafetensorsCheckpoint, str, Kind], np.float32]
"""Reads a global scale of a weight or an activation and gives the divisor that it means."""


def packed_nvfp4(
    checkpoint: SafetensorsCheckpoint,
    codes: str,
    scales: str,
    weight_scale: str,
    input_scale: str,
    read_divisor: ReadDivisor,
) -> DecodedSource:
    """The matrix of four tensors, of which `input_scale` may be absent.

    Args:
        checkpoint: The tensors.
        codes: U8 ``[N, K / 2]``; the code of the even column is in the low half of a byte.
        scales: F8_E4M3 ``[N, K / 16]``.
        weight_scale: Global scale of the weights.
        input_scale: Global scale of the activations.
        read_divisor: Reads both.

    Raises:
        CheckpointError: A tensor has another type or shape.
    """
    used = [codes, scales, weight_scale]
    if input_scale in checkpoint:
        used.append(input_scale)
    return DecodedSource(_PackedNvfp4(checkpoint, used, read_divisor), used, checkpoint.path)


class _PackedNvfp4(EncodedSource):
    def __init__(
        self, checkpoint: SafetensorsCheckpoint, tensors: list[str], read_divisor: ReadDivisor
    ) -> None:
        self._codes, self._scales, self._weight_scale, *self._input_scale = tensors
        info = checkpoint.info(self._codes)
        if info.dtype != "U8" or len(info.shape) != 2 or 2 * info.shape[1] % NVFP4_GROUP:
            raise CheckpointError(
                f"tensor {info.name!r} of type {info.dtype} and shape {list(info.shape)} holds no "
                "nvfp4 codes (expected U8 [N, K / 2], K a multiple of 16)",
                path=info.file,
                tensors=(info.name,),
            )
        N, K = info.shape[0], 2 * info.shape[1]
        super().__init__("nvfp4", (N, K), self._codes)
        scales = checkpoint.info(self._scales)
        if scales.dtype != "F8_E4M3" or scales.shape != (N, K // NVFP4_GROUP):
            raise CheckpointError(
                f"tensor {scales.name!r} of type {scales.dtype} and shape {list(scales.shape)} "
                f"holds no block scales (expected F8_E4M3 {[N, K // NVFP4_GROUP]})",
                path=scales.file,
                tensors=(scales.name,),
            )
        self._checkpoint = checkpoint
        self._read_divisor = read_divisor

    def _read(self, begin: int, end: int) -> Nvfp4Words:
        K = self.shape[1]
        groups = K // NVFP4_GROUP
        packed = self._checkpoint.read(self._codes, begin * K // 2, end * K // 2)
        scales = self._checkpoint.read(self._scales, begin * groups, end * groups)
        return Nvfp4Words(
            unpack_nibbles(packed.reshape(end - begin, -1)),
            scales.view(np.uint8).reshape(end - begin, -1),
            np.array([self.weight_divisor()], np.float32).view(np.uint32),
        )

    def weight_divisor(self) -> np.float32:
        return self._divisor

    def input_divisor(self) -> np.float32 | None:
        return self._activation_divisor

    @cached_property
    def _divisor(self) -> np.float32:
        return self._read_divisor(self._checkpoint, self._weight_scale, "weight")

    @cached_property
    def _activation_divisor(self) -> np.float32 | None:
        if not self._input_scale:
            return None
        return self._read_divisor(self._checkpoint, self._input_scale[0], "activation")
