"""Pages of 64 tokens that hold the keys and values of one attention layer for all sequences."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.kv.formats import KVFormat, RowFormat, kv_formats
from ninfer_runtime.kv.row_codecs import HEAD_DIM

PAGE_TOKENS = 64


def pages_for(tokens: int) -> int:
    """Pages that so many tokens take."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class RowPlanes:
    """Keys, or values, of every page.

    Attributes:
        format: How a row is stored.
        codes: [pages, KH, 64, code width].
        scales: [pages, KH, 64, scales of a row], None where the codec has none.
    """

    format: RowFormat
    codes: Tensor
    scales: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Codes and, if there are any, scales: what the codec takes and gives, in its order."""
        return (self.codes,) if self.scales is None else (self.codes, self.scales)

    @property
    def num_bytes(self) -> int:
        """Bytes taken."""
        return sum(tensor.num_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class KVPages:
    """Keys and values of one layer.

    Attributes:
        format: Storage of both.
        key: Rotated keys.
        value: Values.
    """

    format: KVFormat
    key: RowPlanes
    value: RowPlanes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All planes."""
        return self.key.tensors + self.value.tensors

    @property
    def num_pages(self) -> int:
        """Pages that there are."""
        return self.key.codes.shape[0]

    @property
    def num_key_value_heads(self) -> int:
        """KH."""
        return self.key.codes.shape[1]

    @property
    def head_dim(self) -> int:
        """HD, components of a row."""
        return self.key.codes.shape[3] if self.format.any_head_dim else HEAD_DIM

    @property
    def num_bytes(self) -> int:
        """Bytes taken."""
        return self.key.num_bytes + self.value.num_bytes


def new_pages(
    kv_format: KVFormat,
    num_pages: int,
    num_key_value_heads: int,
    device: Device,
    head_dim: int = HEAD_DIM,
) -> KVPages:
    """Pages with undefined content; nobody reads a token before it has been written.

    Raises:
        UnsupportedOpError: The device has not this format, or the format no heads of this size.
    """
    _check_format(kv_format, device, head_dim)

    def plane(dtype: DType, width: int) -> Tensor:
        return device.empty((num_pages, num_key_value_heads, PAGE_TOKENS, width), dtype)

    def planes(row_format: RowFormat) -> RowPlanes:
        codec = row_format.codec
        codes = plane(codec.code_dtype, codec.codes_of(head_dim))
        if codec.scale_dtype is None:
            return RowPlanes(row_format, codes)
        return RowPlanes(row_format, codes, plane(codec.scale_dtype, codec.scale_width))

    return KVPages(kv_format, planes(kv_format.key), planes(kv_format.value))


def page_bytes(
    kv_format: KVFormat, num_key_value_heads: int, device: Device, head_dim: int = HEAD_DIM
) -> int:
    """Bytes of one page of `new_pages`, which raises the same errors."""
    _check_format(kv_format, device, head_dim)
    row = sum(each.codec.row_bytes(head_dim) for each in (kv_format.key, kv_format.value))
    return PAGE_TOKENS * num_key_value_heads * row


def _check_format(kv_format: KVFormat, device: Device, head_dim: int) -> None:
    """Refuse a format that the device has not, or not for heads of this size.

    Raises:
        UnsupportedOpError: As said.
    """
    available = kv_formats(device.kind)
    if available.get(kv_format.name) is not kv_format:
        detail = f"KV format {kv_format.name}; there are {', '.join(available)}"
        raise UnsupportedOpError("new_pages", device.kind, detail=detail)
    if head_dim != HEAD_DIM and not kv_format.any_head_dim:
        detail = f"KV format {kv_format.name} with heads of {head_dim} components, not {HEAD_DIM}"
        raise UnsupportedOpError("new_pages", device.kind, detail=detail)
