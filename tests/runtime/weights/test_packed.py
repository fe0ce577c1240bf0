"""Every parameter of an artifact reaches the device with its words, whatever it is bound to."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_format import Artifact, ArtifactError
from ninfer_runtime.device import DType, get_device
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.cases import WEIGHT_FORMATS
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import decode_records
from ninfer_runtime.weights import packed
from ninfer_runtime.weights.packed import PackedWeights

BY_ROWS = [name for name in WEIGHT_FORMATS if name != "nvfp4"]
"""Formats whose rows can be cut anywhere."""


@pytest.fixture
def decoded(host_array):
    """The values in the records of weights, one below the other."""

    def values(*weights: PackedWeight) -> np.ndarray:
        return np.concatenate(
            [
                decode_records(
                    weight.record_format,
                    host_array(weight.data),
                    None if weight.row_scale is None else host_array(weight.row_scale),
                    weight.shape,
                )
                for weight in weights
            ]
        )

    return values


@pytest.fixture
def load(opened, device):
    """Open an artifact; what it is asked for has arrived when the block ends."""
    return lambda sketch, **options: PackedWeights(
        opened(sketch), sketch.parameters, device, **options
    )


def stored_values(sketch, opened, *names: str) -> np.ndarray:
    artifact: Artifact = opened(sketch)
    shapes = {parameter.name: parameter.shape for parameter in sketch.parameters}
    return np.concatenate([artifact.decode_parameter(name, shapes[name]) for name in names])


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    # nvfp4 has a division there and a product with the reciprocal here.
    np.testing.assert_allclose(found, expected, rtol=2e-7, atol=0)


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_matrices_of_one_parent_are_one_weight(sketch, opened, load, decoded, name):
    made = sketch({"parent": (name, (384, 192))})
    for index in range(3):
        made.bind_rows(f"text/m{index}", "parent", 128 * index, 128 * (index + 1))
    names = [parameter.name for parameter in made.parameters]
    with load(made) as store:
        (weight,) = store.projections(names)
    assert (weight.format, weight.shape) == (name, (384, 192))
    assert_same(decoded(weight), stored_values(made, opened, *names))


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_of_any_number_and_place_are_put_together(sketch, opened, load, decoded, name):
    made = sketch({"a": (name, (75, 100)), "b": (name, (33, 100))})
    made.bind_rows("text/m0", "a", 7, 24)
    made.bind_rows("text/m1", "b", 1, 2)
    made.bind_rows("text/m2", "b", 2, 33)
    made.bind_rows("text/m3", "a", 24, 75)
    names = [parameter.name for parameter in made.parameters]
    with load(made) as store:
        (weight,) = store.projections(names)
    assert weight.shape == (17 + 1 + 31 + 51, 100)
    assert_same(decoded(weight), stored_values(made, opened, *names))


def test_one_weight_for_each_change_of_the_format(sketch, opened, load, decoded):
    made = sketch(
        {
            "qk": ("q4_g64_fp16", (48, 128)),
            "gv": ("q5_g64_fp16", (48, 128)),
            "a": ("bf16", (3, 128)),
            "b": ("bf16", (3, 128)),
        }
    )
    made.bind_rows("text/m_q", "qk", 0, 32)
    made.bind_rows("text/m_k", "qk", 32, 48)
    made.bind_rows("text/m_g", "gv", 0, 32)
    made.bind_rows("text/m_v", "gv", 32, 48)
    made.bind_rows("text/m_a", "a", 0, 3)
    made.bind_rows("text/m_b", "b", 0, 3)
    names = [parameter.name for parameter in made.parameters]
    with load(made) as store:
        weights = store.projections(names)
        crossed = store.projections([names[2], names[0], names[3]])
    assert [(weight.format, weight.shape[0]) for weight in weights] == [
        ("q4_g64_fp16", 48),
        ("q5_g64_fp16", 48),
        ("bf16", 6),
    ]
    assert_same(decoded(*weights), stored_values(made, opened, *names))
    assert [weight.shape[0] for weight in crossed] == [32, 32, 16]
    assert_same(decoded(*crossed), stored_values(made, opened, names[2], names[0], names[3]))


def test_divisors_of_stacked_matrices_go_with_their_rows(sketch, opened, load, decoded):
    made = sketch({"stack": ("nvfp4", (768, 64), 3), "alone": ("nvfp4", (128, 64))})
    made.bind_rows("text/m0", "stack", 128, 640)  # begins and ends inside the share of a divisor
    made.bind_rows("text/m1", "alone", 0, 128)
    with load(made) as store:
        (weight,) = store.projections(["text/m0", "text/m1"])
    assert len(np.unique(decoded(weight)[:, 0])) > 3
    assert_same(decoded(weight), stored_values(made, opened, "text/m0", "text/m1"))


def test_bf16_may_be_cut_anywhere(sketch, opened, load, decoded):
    made = sketch({"a": ("bf16", (5, 64)), "flat": ("bf16", (1000,))})
    made.bind("text/m0", (4, 64), ("a", 3, 100), ("a", 100, 210), ("flat", 77, 126))
    with load(made) as store:
        (weight,) = store.projections(["text/m0"])
    assert_same(decoded(weight), stored_values(made, opened, "text/m0"))


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_a_bank_is_loaded_in_many_slices(sketch, opened, load, decoded, monkeypatch, name):
    monkeypatch.setattr(packed, "SMALLEST_STAGING_BYTES", 2**15)
    monkeypatch.setattr(packed, "STAGING_BYTES", 2**15)
    experts = 6
    made = sketch({f"e{index}": (name, (256, 192)) for index in range(experts)})
    for index in reversed(range(experts)):
        made.bind_rows(f"text/m{index}/up", f"e{index}", 128, 256)
        made.bind_rows(f"text/m{index}/gate", f"e{index}", 0, 128)
    names = [f"text/m{index}/{role}" for index in range(experts) for role in ("gate", "up")]
    with load(made) as store:
        weight = store.bank(names)
    assert weight.shape == (experts * 256, 192)
    assert_same(decoded(weight), stored_values(made, opened, *names))


def test_a_bank_has_one_format(sketch, load):
    made = sketch({"a": ("q4_g64_fp16", (16, 128)), "b": ("q5_g64_fp16", (16, 128))})
    made.bind_rows("text/m0", "a", 0, 16)
    made.bind_rows("text/m1", "b", 0, 16)
    with (
        load(made) as store,
        pytest.raises(UnsupportedOpError, match="m0 in q4_g64_fp16, text/m1 in q5_g64") as caught,
    ):
        store.bank(["text/m0", "text/m1"])
    assert "recipe" in str(caught.value.hint)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", DType.FP32), ("bf16", DType.BF16)])
def test_other_parameters_keep_their_numbers(
    sketch, opened, load, device, monkeypatch, name, dtype
):
    monkeypatch.setattr(packed, "SMALLEST_STAGING_BYTES", 2**10)
    monkeypatch.setattr(packed, "STAGING_BYTES", 2**10)
    made = sketch({"a": (name, (40, 30)), "b": (name, (300,))})
    made.bind("text/convolution", (4, 200), ("a", 1, 601), ("b", 100, 300))
    with load(made) as store:
        tensor = store.tensor("text/convolution")
    assert (tensor.dtype, tensor.shape) == (dtype, (4, 200))
    expected = stored_values(made, opened, "text/convolution")
    np.testing.assert_array_equal(device.to_host(tensor), expected)


def test_what_two_parameters_share_is_loaded_once(sketch, load):
    made = sketch({"table": ("q6_g64_fp16", (64, 128)), "norm": ("bf16", (128,))})
    made.bind_rows("text/embedding", "table", 0, 64)
    made.bind_rows("text/m_head", "table", 0, 64)
    made.bind("text/norm", (128,), ("norm", 0, 128))
    arrived: list[tuple[int, str]] = []
    with load(made, advance=lambda num_bytes, name: arrived.append((num_bytes, name))) as store:
        assert store.is_shared("text/embedding", "text/m_head")
        assert not store.is_shared("text/embedding", "text/norm")
        table, norm = store.table("text/embedding"), store.tensor("text/norm")
        assert store.projections(["text/m_head"]) == (table,)
        sizes = table.num_bytes, norm.num_bytes
        assert arrived == [(sizes[0], "text/embedding"), (sizes[1], "text/norm")]
        assert store.num_bytes == sum(sizes)
        assert store.loading_bytes >= store.num_bytes


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_the_bytes_are_known_before_anything_is_read(sketch, load, name):
    made = sketch({"w": (name, (256, 192)), "norm": ("fp32", (10,))})
    made.bind_rows("text/m", "w", 0, 256)
    made.bind("text/norm", (10,), ("norm", 0, 10))
    with load(made) as store:
        expected = store.num_bytes
        (weight,) = store.projections(["text/m"])
        assert expected == weight.num_bytes + store.tensor("text/norm").num_bytes


def test_formats_that_nothing_reads_are_named_in_one_error(sketch, load):
    made = sketch({"rows": ("q4_g32_fp16_rows", (16, 64)), "good": ("bf16", (16, 64))})
    made.bind_rows("text/m_gate", "rows", 0, 8)
    made.bind_rows("text/m_up", "good", 0, 16)
    made.bind_rows("text/m_down", "rows", 8, 16)
    with pytest.raises(
        UnsupportedOpError,
        match=r"text/m_gate in q4_g32_fp16_rows, text/m_down in q4_g32_fp16_rows$",
    ) as caught:
        load(made)
    assert "recipe" in str(caught.value.hint)


def test_a_matrix_of_numbers_is_not_rounded_to_be_multiplied(sketch, opened, load, device):
    made = sketch({"wide": ("fp32", (17, 64))})
    made.bind_rows("text/m_router", "wide", 0, 16)
    made.bind_rows("text/m_score", "wide", 16, 17)
    with load(made) as store:
        with pytest.raises(UnsupportedOpError, match="to be multiplied: text/m_router in fp32"):
            store.projections(["text/m_router"])
        router = store.tensor("text/m_router", "text/m_score")
        assert store.num_bytes == router.num_bytes
    expected = stored_values(made, opened, "text/m_router", "text/m_score")
    assert router.dtype is DType.FP32
    np.testing.assert_array_equal(device.to_host(router), expected)


def test_a_matrix_of_two_formats_is_no_single_weight(sketch, load, decoded):
    made = sketch({"a": ("q4_g64_fp16", (16, 128)), "b": ("q5_g64_fp16", (16, 128))})
    made.bind("text/m0", (32, 128), ("a", 0, 16 * 128), ("b", 0, 16 * 128))
    made.bind_rows("text/m1", "b", 0, 16)
    with load(made) as store:
        with pytest.raises(UnsupportedOpError, match="text/m0 in q4_g64_fp16/q5_g64_fp16"):
            store.projections(["text/m0"])
        weights = store.projections(["text/m0", "text/m1"])
    assert [weight.shape[0] for weight in weights] == [16, 32]


def test_blocks_of_rows_that_cannot_be_cut_are_refused(sketch, load):
    made = sketch({"w": ("nvfp4", (256, 64))})
    made.bind_rows("text/m", "w", 64, 192)
    with load(made) as store, pytest.raises(ArtifactError, match="multiples of 128 rows"):
        store.projections(["text/m"])


def test_part_of_a_row_of_a_quantized_matrix_is_refused(sketch, load):
    made = sketch({"w": ("q4_g64_fp16", (4, 64))})
    made.bind("text/m", (2, 64), ("w", 32, 160))
    with load(made) as store, pytest.raises(ArtifactError, match="whole rows of 64 elements"):
        store.projections(["text/m"])


@pytest.mark.parametrize("divisor", [0.0, -1.0, np.inf, np.nan])
def test_divisors_that_are_no_factors_are_refused(sketch, load, divisor):
    made = sketch({"w": ("nvfp4", (128, 64))})
    made.bind_rows("text/m", "w", 0, 128)
    codec, payload = made.objects["w"]
    plane = codec.geometry.planes["divisors"]
    payload[plane.offset : plane.end].view("<f4")[:] = divisor
    with load(made) as store, pytest.raises(ArtifactError, match="format does not allow"):
        store.projections(["text/m"])


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@pytest.mark.parametrize("staging", [2**16, 2**20])
def test_a_gate_and_what_it_gates_take_turns(
    sketch, opened, load, decoded, monkeypatch, name, staging
):
    """From parts of objects, in slices, with several divisors."""
    monkeypatch.setattr(packed, "SMALLEST_STAGING_BYTES", staging)
    monkeypatch.setattr(packed, "STAGING_BYTES", staging)
    made = sketch({"a": (name, (640, 320), 5 if name == "nvfp4" else 1), "b": (name, (512, 320))})
    made.bind("text/m_gate", (384, 320), ("a", 128 * 320, 384 * 320), ("b", 0, 128 * 320))
    made.bind_rows("text/m_up", "b", 128, 512)
    with load(made) as store:
        gated = store.gated("text/m_gate", "text/m_up")
        assert store.num_bytes == gated.matrices[0].num_bytes
    assert (gated.in_turns, gated.shape) == (True, (384, 320))
    turns = decoded(*gated.matrices).reshape(48, 2, 8, 320)
    for half, parameter in enumerate(("text/m_gate", "text/m_up")):
        expected = stored_values(made, opened, parameter)
        assert_same(turns[:, half].reshape(384, 320), expected)


@pytest.mark.parametrize(
    ("gate", "up", "rows"),
    [("q4_g64_fp16", "q5_g64_fp16", 48), ("q4_g64_fp16", "q4_g64_fp16", 20)],
)
def test_other_gates_lie_above_what_they_gate(sketch, opened, load, decoded, gate, up, rows):
    made = sketch({"a": (gate, (rows, 128)), "b": (up, (rows, 128))})
    made.bind_rows("text/m_gate", "a", 0, rows)
    made.bind_rows("text/m_up", "b", 0, rows)
    with load(made) as store:
        gated = store.gated("text/m_gate", "text/m_up")
    assert (gated.in_turns, gated.shape) == (False, (rows, 128))
    assert_same(decoded(*gated.matrices), stored_values(made, opened, "text/m_gate", "text/m_up"))


def test_halves_that_a_layout_stores_together_do_not_take_turns(sketch, opened, load, decoded):
    made = sketch({"both": ("nvfp4", (128, 64))})
    made.bind("text/m_gate", (64, 64), ("both", 0, 64 * 64))
    made.bind("text/m_up", (64, 64), ("both", 64 * 64, 128 * 64))
    with load(made) as store:
        gated = store.gated("text/m_gate", "text/m_up")
    assert not gated.in_turns
    assert_same(decoded(*gated.matrices), stored_values(made, opened, "text/m_gate", "text/m_up"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@pytest.mark.parametrize("staging", [2**15, 2**20])
def test_a_gpu_makes_the_records_of_the_host(gpu, sketch, opened, monkeypatch, name, staging):
    """Bit for bit, from rows of several objects, in slices, with several divisors."""
    monkeypatch.setattr(packed, "SMALLEST_STAGING_BYTES", staging)
    monkeypatch.setattr(packed, "STAGING_BYTES", staging)
    if name == "nvfp4":
        made = sketch({"a": (name, (512, 320), 4), "b": (name, (384, 320))})
        made.bind_rows("text/m0", "a", 128, 512)
        made.bind_rows("text/m1", "b", 0, 256)
    else:
        made = sketch({"a": (name, (301, 317)), "b": (name, (203, 317))})
        made.bind_rows("text/m0", "a", 5, 280)
        made.bind_rows("text/m1", "b", 3, 203)
    weights: list[PackedWeight] = []
    for device in (get_device("cpu"), gpu):
        with PackedWeights(opened(made), made.parameters, device) as store:
            weights += store.projections(["text/m0", "text/m1"])
    host, found = weights
    np.testing.assert_array_equal(gpu.download(found.data), host.data)
    if host.row_scale is not None:
        np.testing.assert_array_equal(gpu.download(found.row_scale), host.row_scale)
