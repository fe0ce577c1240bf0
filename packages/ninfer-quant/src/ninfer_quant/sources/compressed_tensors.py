"""Matrices as compressed-tensors stores them."""

from __future__ import annotations

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.decoded import DecodedSource
from ninfer_quant.sources.fp8_source import RowFp8, ScaledFp8, exact_bf16_words
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.nvfp4_source import packed_nvfp4
from ninfer_quant.sources.scalars import divisor_of_divisor

PACKED = ".weight_packed"


def is_nvfp4(checkpoint: SafetensorsCheckpoint, prefix: str) -> bool:
    """Whether the tensors of a matrix are those of nvfp4."""
    return prefix + PACKED in checkpoint


def nvfp4_source(checkpoint: SafetensorsCheckpoint, prefix: str) -> DecodedSource:
    """An nvfp4 matrix; both global scales are divisors and their words stay as they are.

    Raises:
        CheckpointError: A tensor has another type or shape.
    """
    return packed_nvfp4(
        checkpoint,
        prefix + PACKED,
        f"{prefix}.weight_scale",
        f"{prefix}.weight_global_scale",
        f"{prefix}.input_global_scale",
        divisor_of_divisor,
    )


def fp8_source(checkpoint: SafetensorsCheckpoint, prefix: str) -> LogicalSource:
    """A float8 matrix with a scale per row.

    Scales that are exact in bf16 are words of the format ``fp8_e4m3fn_row_bf16``; others are only
    good for values.

    Raises:
        CheckpointError: A tensor has another shape.
    """
    codes, scale = f"{prefix}.weight", f"{prefix}.weight_scale"
    shape, info = checkpoint.info(codes).shape, checkpoint.info(scale)
    if len(shape) != 2 or info.dtype not in ("BF16", "F32", "F16") or info.elements != shape[0]:
        raise CheckpointError(
            f"tensor {scale!r} of type {info.dtype} and shape {list(info.shape)} is no scale of "
            f"the rows of {codes!r} (expected BF16 {[shape[0], 1] if shape else 'of a matrix'})",
            path=info.file,
            tensors=(scale,),
        )
    words = exact_bf16_words(checkpoint.read(scale))
    if words is None:
        return ScaledFp8(checkpoint, codes, scale, (shape[0], 1), (1, 1))
    return DecodedSource(RowFp8(checkpoint, codes, words), (codes, scale), checkpoint.path)
