"""Ops of a dense 27B model beside its plain products, with random data, as work to be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.kv.formats import KV_FORMATS, KVFormat
from ninfer_runtime.kv.pages import new_pages, pages_for
from ninfer_runtime.kv.slots import RING, DeltaGeometry, new_slots
from ninfer_runtime.ops.add_rms_norm import add_rms_norm
from ninfer_runtime.ops.attention_inputs import AttentionInputs
from ninfer_runtime.ops.gated_delta_net import (
    DeltaInputs,
    DeltaSteps,
    DeltaWeights,
    gated_delta_net,
)
from ninfer_runtime.ops.gated_linear import GatedWeight, gated_linear
from ninfer_runtime.ops.linear.activations import pack
from ninfer_runtime.ops.linear.packed_weight import packed_bytes
from ninfer_runtime.ops.linear.weight_records import ROWS
from ninfer_runtime.ops.paged_arguments import Spans
from ninfer_runtime.ops.paged_attention import paged_attention
from ninfer_runtime.ops.product_input import ProductInput
from ninfer_runtime.ops.sample import MASK_BITS, SamplingRows, sample
from ninfer_runtime.weights.synthetic import random_weight

ROTATED_BYTES = 1_100_000_000
"""Distinct data that one measurement goes through, many times the second-level cache."""

MOST_COPIES = 400
"""Launches of one measurement."""

WIDTH, INNER, VOCABULARY = 5120, 17_408, 248_320
HEADS, KEY_HEADS, HEAD_DIM, PAIRS = 24, 4, 256, 32
KEY_STATE_HEADS, VALUE_STATE_HEADS, STATE_DIM = 16, 48, 128
TAPS = 4


@dataclass(frozen=True, slots=True)
class OpCase:
    """One measurement.

    Attributes:
        op: Name of the op.
        case: What it does, in short.
        num_bytes: Bytes that it has to move at least.
        flops: Operations that it has to do, 0 where bytes alone decide.
        make: Makes one call with data of its own.
    """

    op: str
    case: str
    num_bytes: int
    flops: int
    make: Callable[[Maker], Callable[[], object]]

    def copies(self) -> int:
        """Calls of one measurement, each with data of its own."""
        return max(2, min(MOST_COPIES, ROTATED_BYTES // self.num_bytes))


class Maker:
    """Random tensors on a GPU.

    Args:
        device: Where.
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.rng = np.random.default_rng(20)

    def normal(self, *shape: int, dtype: DType = DType.BF16) -> Tensor:
        """Standard normal values, those of bf16 without the bits that it has not."""
        xp = self.device.xp
        with self.device.allocating(), self.device.on_stream():
            values = xp.random.standard_normal(shape, dtype=np.float32)
            if dtype is DType.BF16:
                values = (values.view(np.uint32) >> 16).astype(np.uint16)
        return Tensor(values, dtype, self.device)

    def integers(self, values: object) -> Tensor:
        """Given numbers, int32."""
        return self.device.from_host(np.asarray(values, np.int32))

    def fill(self, tensor: Tensor) -> None:
        """Give a tensor random bits that are a number below two in every format."""
        size = tensor.array.dtype.itemsize
        kind = np.dtype(f"u{size}")
        # Without its second bit a float has no large exponent and is finite.
        mask = kind.type(~(1 << (8 * size - 2)) & ((1 << 8 * size) - 1))
        with self.device.allocating(), self.device.on_stream():
            words = tensor.array.reshape(-1).view(kind)
            count = -(-words.nbytes // 4)
            random = self.device.xp.random.randint(0, 2**32, count, dtype=np.uint32)
            words[:] = random.view(kind)[: words.size] & mask


def cases(op: str) -> Iterator[OpCase]:
    """The measurements of an op.

    Args:
        op: A key of `CASES`.
    """
    yield from CASES[op]()


def _gated_cases() -> Iterator[OpCase]:
    for name in ("q4_g64_fp16", "nvfp4"):
        for T in (1, 8, 16, 32):
            rows = 2 * T * (WIDTH + INNER)
            num_bytes = packed_bytes(name, (2 * INNER, WIDTH)) + rows
            yield OpCase("gated_linear", f"{name} T={T}", num_bytes, 0, partial(_gated, name, T))


def _gated(name: str, T: int, maker: Maker) -> Callable[[], object]:
    seed = int(maker.rng.integers(2**32))
    matrix = random_weight(maker.device, name, (2 * INNER, WIDTH), seed)
    reader = random_weight(maker.device, name, (ROWS, INNER), seed)
    x = ProductInput(maker.normal(T, WIDTH).array, DType.BF16, maker.device)
    pack(maker.device, x, matrix)
    return partial(gated_linear, x, GatedWeight((matrix,), in_turns=True), reader=reader)


def _norm_cases() -> Iterator[OpCase]:
    for T in (1, 8, 1024):
        yield OpCase("add_rms_norm", f"T={T}", 3 * T * WIDTH * 2 + WIDTH * 2, 0, partial(_norm, T))


def _norm(T: int, maker: Maker) -> Callable[[], object]:
    x, y, weight = maker.normal(T, WIDTH), maker.normal(T, WIDTH), maker.normal(WIDTH)
    out = maker.device.empty((T, WIDTH), DType.BF16)
    return partial(add_rms_norm, x, y, weight, eps=1e-6, unit_offset=True, out=out)


def _sample_cases() -> Iterator[OpCase]:
    settings = {"greedy": (0.0, 0.0), "drawn": (0.7, 0.0), "drawn with penalty": (0.7, 1.5)}
    for R in (1, 8):
        for name, (temperature, penalty) in settings.items():
            num_bytes = (8 if penalty else 4) * R * VOCABULARY
            make = partial(_sample, R, temperature, penalty)
            yield OpCase("sample", f"R={R} {name}", num_bytes, 0, make)


def _sample(R: int, temperature: float, penalty: float, maker: Maker) -> Callable[[], object]:
    def floats(value: float) -> Tensor:
        return maker.device.from_host(np.full(R, value, np.float32))

    rows = SamplingRows(
        temperature=floats(temperature),
        top_k=maker.integers([20] * R),
        top_p=floats(0.95),
        min_p=floats(0.0),
        presence_penalty=floats(penalty),
        frequency_penalty=floats(0.0),
        seed=maker.integers([[1, 2]] * R),
        position=maker.integers(range(R)),
        purpose=maker.integers([1] * R),
        counts_row=maker.integers(range(R)),
        mask_row=maker.integers([-1] * R),
        returned_place=maker.integers([-1] * R),
        counts=maker.device.zeros((R, VOCABULARY), DType.INT32),
        masks=maker.device.zeros((1, -(-VOCABULARY // MASK_BITS)), DType.INT32),
        returned=maker.device.zeros((R,), DType.INT32),
    )
    logits = maker.normal(R, VOCABULARY, dtype=DType.FP32)
    out = maker.device.empty((R,), DType.INT32)
    return partial(sample, logits, rows, public_tokens=VOCABULARY, out=out)


def _delta_cases() -> Iterator[OpCase]:
    state = 2 * VALUE_STATE_HEADS * STATE_DIM**2 * 4
    width = (2 * KEY_STATE_HEADS + 3 * VALUE_STATE_HEADS) * STATE_DIM * 2
    flops = 6 * VALUE_STATE_HEADS * STATE_DIM**2
    for B, C in ((1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (1, 1024)):
        yield OpCase(
            "gated_delta_net",
            f"B={B} C={C}",
            B * (state + C * width),
            B * C * flops,
            partial(_delta, B, C),
        )


def _delta(B: int, C: int, maker: Maker) -> Callable[[], object]:
    channels = (2 * KEY_STATE_HEADS + VALUE_STATE_HEADS) * STATE_DIM
    geometry = DeltaGeometry(VALUE_STATE_HEADS, STATE_DIM, STATE_DIM, channels)
    slots = new_slots(geometry, B, RING, maker.device)
    maker.fill(slots.state)
    maker.fill(slots.records)
    lanes, position = maker.integers(range(B)), maker.integers([1000] * B)
    columns = maker.integers([C] * B)
    return partial(
        gated_delta_net,
        DeltaInputs(
            u=maker.normal(B, C, channels),
            z=maker.normal(B, C, VALUE_STATE_HEADS * STATE_DIM),
            a=maker.normal(B, C, VALUE_STATE_HEADS),
            b=maker.normal(B, C, VALUE_STATE_HEADS),
        ),
        DeltaWeights(
            convolution=maker.normal(TAPS, channels),
            a_log=maker.normal(VALUE_STATE_HEADS, dtype=DType.FP32),
            dt_bias=maker.normal(VALUE_STATE_HEADS, dtype=DType.FP32),
            norm=maker.normal(STATE_DIM),
        ),
        slots,
        DeltaSteps(lanes, lanes, position, maker.integers([0] * B), columns, columns),
        eps=1e-6,
        out=ProductInput.empty(maker.device, (B * C, VALUE_STATE_HEADS * STATE_DIM), DType.BF16),
    )


def _attention_cases() -> Iterator[OpCase]:
    shapes = ((1, 1, 4096), (8, 1, 4096), (1, 1, 65_536), (1, 1024, 0), (1, 1024, 7168))
    for name, kv_format in KV_FORMATS.items():
        for B, C, before in shapes:
            keys = B * (before + C)
            codecs = (kv_format.key.codec, kv_format.value.codec)
            num_bytes = keys * KEY_HEADS * sum(codec.row_bytes(HEAD_DIM) for codec in codecs)
            num_bytes += 3 * B * C * HEADS * HEAD_DIM * 2
            flops = 4 * HEADS * HEAD_DIM * B * (C * before + C * (C + 1) // 2)
            case = f"{name} B={B} C={C} after {before}"
            make = partial(_attention, kv_format, B, C, before)
            yield OpCase("paged_attention", case, num_bytes, flops, make)


def _attention(
    kv_format: KVFormat, B: int, C: int, before: int, maker: Maker
) -> Callable[[], object]:
    width = pages_for(before + C)
    pages = new_pages(kv_format, B * width, KEY_HEADS, maker.device)
    for tensor in pages.tensors:
        maker.fill(tensor)
    spans = Spans(
        maker.integers(maker.rng.permutation(B * width).reshape(B, width)),
        maker.integers(range(B)),
        maker.integers([before] * B),
        maker.integers([C] * B),
    )
    query: Tensor | AttentionInputs
    query, gate = (maker.normal(B, C, HEADS, HEAD_DIM) for _ in range(2))
    if C == 1:  # few rows, whose heads the same kernel makes ready
        key, value = (maker.normal(B, C, KEY_HEADS, HEAD_DIM) for _ in range(2))
        query_weight, key_weight = (maker.normal(HEAD_DIM) for _ in range(2))
        cos, sin = (maker.normal(B, C, PAIRS, dtype=DType.FP32) for _ in range(2))
        query = AttentionInputs(query, key, value, query_weight, key_weight, cos, sin, 1e-6)
    return partial(paged_attention, query, gate, pages, spans, scale=1 / 16)


CASES: dict[str, Callable[[], Iterator[OpCase]]] = {
    "gated_linear": _gated_cases,
    "add_rms_norm": _norm_cases,
    "sample": _sample_cases,
    "gated_delta_net": _delta_cases,
    "paged_attention": _attention_cases,
}
"""By op."""
