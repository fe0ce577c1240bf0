"""The registry of codecs, and the check that a tensor record can be interpreted.

A new storage codec is one file in this folder and one line in `_CODECS`; its format and layout are
entered in `ninfer_format.dtypes` and `ninfer_format.layouts`.
"""

from __future__ import annotations

from typing import Any

from ninfer_format.codecs.base import Codec
from ninfer_format.codecs.bf16 import Bf16Codec
from ninfer_format.codecs.exl3 import Exl3Codec
from ninfer_format.codecs.fp8_row import Fp8RowCodec
from ninfer_format.codecs.fp32 import Fp32Codec
from ninfer_format.codecs.geometry import Shape
from ninfer_format.codecs.groupwise_int import Q4Codec, Q5Codec, Q6Codec, Q8Codec
from ninfer_format.codecs.int32 import Int32Codec
from ninfer_format.codecs.nvfp4 import Nvfp4Codec
from ninfer_format.codecs.row_group import RowGroupCodec
from ninfer_format.container.location import located
from ninfer_format.container.schema import ObjectRecord, ResourceRecord, TensorRecord
from ninfer_format.dtypes import get_format
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import RAW_BYTES_V1, get_layout

_CODECS: dict[tuple[str, str], type[Codec[Any]]] = {
    (codec.numeric.name, codec.storage.name): codec
    for codec in (
        Bf16Codec,
        Fp32Codec,
        Int32Codec,
        Q4Codec,
        Q5Codec,
        Q6Codec,
        Q8Codec,
        RowGroupCodec,
        Nvfp4Codec,
        Fp8RowCodec,
        Exl3Codec,
    )
}


def codec_for(
    format: str,
    layout: str,
    shape: Shape,
    *,
    divisors: int = 1,
    bitrate_half_bits: int | None = None,
) -> Codec[Any]:
    """The codec of one tensor.

    Args:
        format: Name of the numeric format.
        layout: Name of the storage layout.
        shape: Logical shape.
        divisors: Number of equal matrices that are stacked along the rows.
        bitrate_half_bits: Rate of a trellis code in half bits per weight, None for other formats.

    Raises:
        ArtifactError: `encoding`: either name is unknown, the two do not go together, or the
            layout cannot store such a tensor (container specification, section 5).
    """
    formats = get_layout(layout).formats
    get_format(format)
    if format not in formats:
        raise ArtifactError(
            "encoding",
            f"layout {layout} does not store format {format}",
            expected=f"one of {', '.join(formats)}",
            found=format,
        )
    codec = _CODECS[format, layout]
    return codec(shape, divisors=divisors, bitrate_half_bits=bitrate_half_bits)


def codec_of(record: TensorRecord) -> Codec[Any]:
    """The codec of a tensor that a directory describes; see `codec_for`."""
    return codec_for(
        record.format,
        record.layout,
        record.shape,
        divisors=record.divisors,
        bitrate_half_bits=record.bitrate_half_bits,
    )


def check_encoding(record: ObjectRecord) -> None:
    """Check that an object can be interpreted as its record says.

    Raises:
        ArtifactError: `encoding`: unknown format, layout or resource encoding, an illegal shape,
            a wrong size or a misaligned offset (container specification, section 5).
    """
    with located(object_id=record.id):
        if isinstance(record, ResourceRecord):
            _check_resource(record)
        else:
            _check_tensor(record)


def _check_tensor(record: TensorRecord) -> None:
    geometry = codec_of(record).geometry
    if record.num_bytes != geometry.num_bytes:
        raise ArtifactError(
            "encoding",
            "wrong size",
            expected=f"{geometry.num_bytes} bytes",
            found=record.num_bytes,
        )
    alignment = get_layout(record.layout).alignment
    if record.offset % alignment:
        raise ArtifactError(
            "encoding",
            "misaligned",
            expected=f"an offset that is a multiple of {alignment}",
            found=record.offset,
        )


def _check_resource(record: ResourceRecord) -> None:
    if record.encoding != RAW_BYTES_V1:
        raise ArtifactError(
            "encoding",
            "unknown resource encoding",
            expected=RAW_BYTES_V1,
            found=record.encoding,
        )
