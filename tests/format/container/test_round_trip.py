"""Random artifacts are written in random pieces and read back."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ninfer_format import (
    Artifact,
    ArtifactWriter,
    Binding,
    Component,
    Part,
    ResourceSpec,
    TensorSpec,
    Use,
    codec_for,
    fp8_row_maxabs,
    nvfp4_absmax,
    open_artifact,
    plan_artifact,
    q4_rows_maxabs,
)

DIRECT = st.sampled_from(["bf16", "fp32", "int32"])
GROUPED = st.sampled_from(["q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"])
ENCODERS: dict[str, Any] = {
    "fp8_e4m3fn_row_bf16": fp8_row_maxabs,
    "q4_g32_fp16_rows": q4_rows_maxabs,
    "nvfp4": nvfp4_absmax,
}
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def tensor_specs(object_id: str) -> st.SearchStrategy[TensorSpec]:
    def specs(
        format: Any, layout: str, shape: Any, **members: Any
    ) -> st.SearchStrategy[TensorSpec]:
        return st.builds(TensorSpec, st.just(object_id), shape, format, st.just(layout), **members)

    any_shape = st.lists(st.integers(1, 9), max_size=4).map(tuple)
    matrix = st.tuples(st.integers(1, 9), st.integers(1, 300))
    groups = st.tuples(st.integers(1, 9), st.sampled_from([32, 64, 160]))
    tiles = st.tuples(st.sampled_from([128, 256]), st.sampled_from([64, 128]))
    trellis = st.sampled_from([(128, 128), (256, 128)])
    return st.one_of(
        specs(DIRECT, "contiguous_le_v1", any_shape),
        specs(GROUPED, "row_split_k128_v1", matrix),
        specs(st.just("fp8_e4m3fn_row_bf16"), "row_scale_v1", matrix),
        specs(st.just("q4_g32_fp16_rows"), "row_group_v1", groups),
        specs(st.just("nvfp4"), "block_scale_k16_m128x4_v1", tiles),
        specs(
            st.just("exl3_mul1"),
            "trellis_t16_v1",
            trellis,
            bitrate_half_bits=st.integers(2, 16),
        ),
    )


def resource_specs(object_id: str) -> st.SearchStrategy[ResourceSpec]:
    data = st.builds(random_bytes, st.integers(1, 9000), st.integers(0, 99))
    return st.builds(ResourceSpec, st.just(object_id), data)


SPECS = st.lists(NAMES, min_size=1, max_size=5, unique=True).flatmap(
    lambda ids: st.tuples(*[tensor_specs(i) | resource_specs(i) for i in ids])
)


def random_bytes(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def payload_of(spec: TensorSpec, seed: int) -> bytes:
    """Encoded bytes of a tensor: legal words where decoding judges them, else any bytes."""
    codec = codec_for(
        spec.format, spec.layout, spec.shape, bitrate_half_bits=spec.bitrate_half_bits
    )
    if spec.format in ENCODERS:
        values = np.random.default_rng(seed).standard_normal(spec.shape, np.float32)
        return codec.encode(ENCODERS[spec.format](values)).tobytes()
    payload = bytearray(random_bytes(codec.geometry.num_bytes, seed))
    for name in ("suh", "svh"):
        if name in codec.geometry.planes:
            plane = codec.geometry.planes[name]
            scales = np.linspace(-2, 2, plane.num_bytes // 4, dtype="<f4")
            payload[plane.offset : plane.end] = scales.tobytes()
    return bytes(payload)


def draw_bindings(data: st.DataObject, tensors: list[TensorSpec]) -> dict[str, Binding]:
    bindings = {}
    for spec in tensors:
        elements = prod(spec.shape)
        begin = data.draw(st.integers(0, elements - 1))
        end = data.draw(st.integers(begin + 1, elements))
        parts = (Part(spec.id, begin, end), Part(spec.id, 0, 1))
        bindings[f"whole/{spec.id}"] = Binding(object=spec.id)
        bindings[f"parts/{spec.id}"] = Binding(parts=parts)
    return bindings


def write_in_pieces(
    data: st.DataObject, writer: ArtifactWriter, object_id: str, payload: bytes
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(payload)), max_size=4))
    pieces = list(pairwise(sorted({0, len(payload), *cuts})))
    for begin, end in data.draw(st.permutations(pieces)):
        writer.write(object_id, begin, payload[begin:end])


def expected_values(artifact: Artifact, binding: Binding) -> NDArray[Any]:
    if binding.object is not None:
        return artifact.decode_object(binding.object)
    flat = artifact.decode_object(binding.parts[0].object).reshape(-1)
    return np.concatenate([flat[part.begin : part.end] for part in binding.parts])


@settings(max_examples=60)
@given(st.data(), SPECS, st.sampled_from([16_384, 20_481, 65_536, 10**9]), NAMES)
def test_written_artifacts_are_read_back(
    data: st.DataObject, specs: tuple[TensorSpec | ResourceSpec, ...], limit: int, name: str
) -> None:
    tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
    bindings = draw_bindings(data, tensors)
    plan = plan_artifact(
        specs,
        components={"text": Component({"n": 1}), "mtp": Component({}, target="text")},
        bindings=bindings,
        uses=[Use(name, "x", "AllowA4", {"d": bindings[name]}) for name in bindings],
        metadata={"name": name},
        provenance={"a": [1, None, "ü"]},
        max_file_bytes=limit,
    )
    payloads = {spec.id: payload_of(spec, seed) for seed, spec in enumerate(tensors)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.ninfer"
        with ArtifactWriter(path, plan) as writer:
            for object_id, payload in payloads.items():
                write_in_pieces(data, writer, object_id, payload)
        assert all(path.stat().st_size <= limit for path in writer.file_paths)
        with open_artifact(path) as artifact:
            assert artifact.directory == writer.plan.directory
            assert artifact.directory.objects == plan.directory.objects
            for object_id, content in (payloads | dict(plan.resources)).items():
                assert artifact.read_object(object_id).tobytes() == content
            for parameter, binding in bindings.items():
                values = artifact.decode_parameter(parameter)
                expected = expected_values(artifact, binding)
                assert values.shape == expected.shape
                assert values.tobytes() == expected.tobytes()
