"""Matrices as ModelOpt stores them; its global scales are multipliers."""

from __future__ import annotations

import numpy as np

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.decoded import DecodedSource
from ninfer_quant.sources.fp8_source import TILE, RowFp8, ScaledFp8, exact_bf16_words
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.nvfp4_source import packed_nvfp4
from ninfer_quant.sources.scalars import divisor_of_multiplier, read_scalar


def is_nvfp4(checkpoint: SafetensorsCheckpoint, prefix: str) -> bool:
    """Whether the tensors of a matrix are those of nvfp4, or were before one got lost."""
    weight = f"{prefix}.weight"
    is_packed = weight not in checkpoint or checkpoint.info(weight).dtype == "U8"
    scales = (f"{prefix}.weight_scale_2", f"{prefix}.weight_scale")
    return is_packed and any(name in checkpoint for name in scales)


def nvfp4_source(checkpoint: SafetensorsCheckpoint, prefix: str) -> DecodedSource:
    """An nvfp4 matrix; its divisors are the reciprocals of the stored multipliers.

    Raises:
        CheckpointError: A tensor has another type or shape.
    """
    return packed_nvfp4(
        checkpoint,
        f"{prefix}.weight",
        f"{prefix}.weight_scale",
        f"{prefix}.weight_scale_2",
        f"{prefix}.input_scale",
        divisor_of_multiplier,
    )


def is_fp8(checkpoint: SafetensorsCheckpoint, prefix: str) -> bool:
    """Whether a float8 matrix has one scale."""
    name = f"{prefix}.weight_scale"
    if name not in checkpoint:
        return False
    info = checkpoint.info(name)
    return info.dtype == "F32" and info.elements == 1


def fp8_source(checkpoint: SafetensorsCheckpoint, prefix: str) -> LogicalSource:
    """A float8 matrix with one multiplier, which is that of every row if bf16 holds it.

    Raises:
        CheckpointError: The multiplier is not finite and above zero.
    """
    codes, scale = f"{prefix}.weight", f"{prefix}.weight_scale"
    shape = checkpoint.info(codes).shape
    if len(shape) != 2:
        raise CheckpointError(
            f"tensor {codes!r} of shape {list(shape)} is no matrix",
            path=checkpoint.path,
            tensors=(codes,),
        )
    words = exact_bf16_words(np.array([read_scalar(checkpoint, scale)]))
    if words is None:
        return ScaledFp8(checkpoint, codes, scale, (1, 1), (shape[0], 1))
    rows = np.repeat(words, shape[0])
    return DecodedSource(RowFp8(checkpoint, codes, rows), (codes, scale), checkpoint.path)


def is_tiled_fp8(checkpoint: SafetensorsCheckpoint, prefix: str) -> bool:
    """Whether a float8 matrix has a scale per tile."""
    return f"{prefix}.weight_scale_inv" in checkpoint


def tiled_fp8_source(checkpoint: SafetensorsCheckpoint, prefix: str) -> LogicalSource:
    """The values of a float8 matrix with a multiplier per tile of 128 rows and columns.

    Raises:
        CheckpointError: The multipliers have another shape.
    """
    codes, scale = f"{prefix}.weight", f"{prefix}.weight_scale_inv"
    shape, info = checkpoint.info(codes).shape, checkpoint.info(scale)
    tiles = tuple(-(-length // TILE) for length in shape)
    if len(shape) != 2 or info.shape != tiles or info.dtype not in ("BF16", "F32"):
        raise CheckpointError(
            f"tensor {scale!r} of type {info.dtype} and shape {list(info.shape)} is no scale of "
            f"the tiles of {codes!r} (expected BF16 {list(tiles)})",
            path=info.file,
            tensors=(scale,),
        )
    return ScaledFp8(checkpoint, codes, scale, (tiles[0], tiles[1]), (TILE, TILE))
