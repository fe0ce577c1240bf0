"""The registry of codecs, and the check that a tensor record can be interpreted.

A new storage codec is one file in this folder and one line in `_CODECS`; its format and layout are
entered in `ninfer_format.dtypes` and `ninfer_format.layouts`.
"""

from __future__ import annotations

from typing import Any

from ninfer_format.codecs.base import Codec
from ninfer_format.codecs.bf16 import Bf16Codec
from ninfer_format.codecs.fp32 import Fp32Codec
from ninfer_format.codecs.groupwise_int import GroupwiseIntCodec
from ninfer_format.codecs.int32 import Int32Codec
from ninfer_format.container.location import located
from ninfer_format.container.schema import ObjectRecord, ResourceRecord, TensorRecord
from ninfer_format.dtypes import Q4_G64_FP16, Q5_G64_FP16, Q6_G64_FP16, Q8_G32_FP16, get_format
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import RAW_BYTES_V1, get_layout

_CODECS: dict[tuple[str, str], Codec[Any]] = {
    (codec.format, codec.layout): codec
    for codec in (
        Bf16Codec(),
        Fp32Codec(),
        Int32Codec(),
        GroupwiseIntCodec(Q4_G64_FP16),
        GroupwiseIntCodec(Q5_G64_FP16),
        GroupwiseIntCodec(Q6_G64_FP16),
        GroupwiseIntCodec(Q8_G32_FP16),
    )
}


def codec_for(format: str, layout: str) -> Codec[Any]:
    """The codec of a numeric format in a storage layout.

    Raises:
        ArtifactError: `encoding`: either name is unknown, or the two do not go together.
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
    return _CODECS[format, layout]


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
    codec = codec_for(record.format, record.layout)
    geometry = codec.geometry(
        record.shape, divisors=record.divisors, bitrate_half_bits=record.bitrate_half_bits
    )
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
