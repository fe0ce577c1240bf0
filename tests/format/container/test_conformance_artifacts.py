"""Artifacts written by another implementation, compared bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    ArtifactError,
    ArtifactWriter,
    GroupedWords,
    ResourceRecord,
    ResourceSpec,
    open_artifact,
    plan_artifact,
)
from ninfer_format.dtypes import FORMATS

COMPLETE = (
    "all_formats/all_formats",
    "minimal/minimal",
    "multipart/multipart",
    "multipart/reserve_growth",
    "multipart/exact_fit",
    "multipart/exact_fit_minus_1",
    "tolerated/spelling",
    "tolerated/gaps",
    "tolerated/odd_segments",
)
# What the words of each format are called in the arrays of expected results.
WORDS: dict[str, dict[str, Callable[[Any], np.ndarray]]] = {
    "bf16": {"words": lambda words: words},
    "fp32": {"words": lambda words: words},
    "int32": {"words": lambda words: words},
    "fp8_e4m3fn_row_bf16": {"code_words": attrgetter("codes"), "scale_words": attrgetter("scales")},
    "q4_g32_fp16_rows": {"codes": attrgetter("codes"), "scale_words": attrgetter("scales")},
    "nvfp4": {
        "code_words": attrgetter("codes"),
        "scale_words": attrgetter("scales"),
        "divisor_words": attrgetter("divisors"),
    },
    "exl3_mul1": {"suh_words": attrgetter("suh"), "svh_words": attrgetter("svh")},
}
GROUPED = frozenset({"q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"})
# Compared with a tolerance or a hash; the tests of the codec do that.
EXL3_RESULTS = frozenset({"z_int16_KxN", "values_rows_index", "values_rows_f64"})


def expected(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.with_suffix(".expected.json").read_text("utf-8"))
    return document


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=COMPLETE)
def path(request: pytest.FixtureRequest, conformance: Path) -> Path:
    return conformance / "artifacts" / f"{request.param}.ninfer"


def test_directory_and_framing_are_as_expected(path: Path) -> None:
    wanted = expected(path)
    with open_artifact(path) as artifact:
        assert artifact.directory.to_json() == wanted["directory"]
        assert artifact.artifact_id.hex() == wanted["artifact_id"]
        assert artifact.payload_bytes == wanted["payload_bytes"]
        assert artifact.file_bytes == wanted["total_file_bytes"]
        assert artifact.name == wanted["directory"]["metadata"].get("name")


def test_payload_and_ranges_have_the_expected_hashes(path: Path) -> None:
    wanted = expected(path)
    with open_artifact(path) as artifact:
        whole = artifact.read_range(0, artifact.payload_bytes)
        assert sha256(whole) == wanted["logical_payload_sha256"]
        for span in wanted["range_reads"]:
            found = artifact.read_range(span["offset"], span["length"])
            assert sha256(found) == span["sha256"]


def test_payload_read_in_tiny_pieces_is_the_same(path: Path) -> None:
    with open_artifact(path) as artifact:
        size = min(artifact.payload_bytes, 3000)
        pieces = [artifact.read_range(begin, 1) for begin in range(size)]
        assert b"".join(pieces) == artifact.read_range(0, size)


def test_objects_have_the_expected_bytes_and_planes(path: Path) -> None:
    with open_artifact(path) as artifact:
        for wanted in expected(path)["objects"]:
            payload = artifact.read_object(wanted["id"])
            assert sha256(payload.tobytes()) == wanted["sha256"], wanted["id"]
            if "planes" in wanted:
                geometry = artifact.codec(wanted["id"]).geometry
                planes = {
                    name: [plane.offset, plane.num_bytes] for name, plane in geometry.planes.items()
                }
                assert planes == wanted["planes"], wanted["id"]
                assert geometry.num_bytes == wanted["bytes"]


def grouped_results(words: GroupedWords, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Words of a grouped format as they are stored: padded to whole groups of 128 columns."""
    rows, groups, group = wanted["codes_physical"].shape
    codes = np.zeros((rows, groups * group), np.int8)
    codes[:, : words.codes.shape[1]] = words.codes
    scales = np.zeros((rows, groups), np.uint16)
    scales[:, : words.scales.shape[1]] = words.scales
    return {
        "codes": words.codes,
        "codes_physical": codes.reshape(rows, groups, group),
        "scale_words_physical": scales,
    }


def test_words_and_values_have_the_expected_bits(path: Path) -> None:
    arrays_path = path.with_suffix(".expected.npz")
    if not arrays_path.exists():
        assert not open_artifact(path).directory.tensors
        return
    arrays = dict(np.load(arrays_path))
    with open_artifact(path) as artifact:
        for record in artifact.directory.tensors:
            prefix = record.id.replace("/", "|") + "|"
            wanted = {
                key.removeprefix(prefix): arrays.pop(key)
                for key in list(arrays)
                if key.startswith(prefix)
            }
            words = artifact.words(record.id)
            if record.format in GROUPED:
                found = grouped_results(words, wanted)
            else:
                found = {name: get(words) for name, get in WORDS[record.format].items()}
            if record.format == "exl3_mul1":
                assert wanted.keys() == found.keys() | EXL3_RESULTS
            elif record.format in ("bf16", "fp32", "int32"):
                assert wanted.keys() == found.keys()
            else:
                found["values_f32"] = artifact.decode_object(record.id)
                assert wanted.keys() == found.keys()
            for name, array in found.items():
                assert (array.shape, array.dtype) == (wanted[name].shape, wanted[name].dtype)
                assert array.tobytes() == wanted[name].tobytes(), f"{record.id} {name}"
    assert not arrays, "every array belongs to an object"


def test_words_encode_to_the_stored_bytes(path: Path) -> None:
    with open_artifact(path) as artifact:
        for record in artifact.directory.objects:
            artifact.verify_object(record.id)
        for record in artifact.directory.tensors:
            encoded = artifact.codec(record.id).encode(artifact.words(record.id))
            assert encoded.tobytes() == artifact.read_object(record.id).tobytes(), record.id


def test_the_artifact_of_all_formats_has_all_formats(conformance: Path) -> None:
    with open_artifact(conformance / "artifacts/all_formats/all_formats.ninfer") as artifact:
        assert {record.format for record in artifact.directory.tensors} == FORMATS.keys()


@pytest.mark.parametrize(
    "name", ["minimal/minimal", "multipart/reserve_growth", "multipart/exact_fit"]
)
def test_writer_reproduces_the_files_byte_for_byte(
    name: str, conformance: Path, tmp_path: Path
) -> None:
    source = conformance / "artifacts" / f"{name}.ninfer"
    limit = max(file["file_bytes"] for file in expected(source)["files"])
    with open_artifact(source) as artifact:
        directory = artifact.directory
        plan = plan_artifact(
            [
                ResourceSpec(record.id, artifact.read_object(record.id).tobytes(), record.encoding)
                for record in directory.objects
                if isinstance(record, ResourceRecord)
            ],
            components=directory.components,
            bindings=directory.bindings,
            uses=directory.uses,
            metadata=directory.metadata,
            provenance=directory.provenance,
            max_file_bytes=limit,
        )
        with ArtifactWriter(tmp_path / source.name, plan, artifact.artifact_id) as writer:
            paths = writer.file_paths
    assert [path.name for path in paths] == [file["name"] for file in expected(source)["files"]]
    for path in paths:
        assert path.read_bytes() == (source.parent / path.name).read_bytes()


def test_parameters_are_assembled_from_parts(conformance: Path) -> None:
    path = conformance / "artifacts/all_formats/all_formats.ninfer"
    arrays = np.load(path.with_suffix(".expected.npz"))
    interleaved = arrays["w.interleaved|words"].astype(np.uint32) << 16
    q4, q5 = arrays["w.q4.2x130|values_f32"], arrays["w.q5.2x130|values_f32"]
    with open_artifact(path) as artifact:
        query = artifact.decode_parameter("text/query", (4, 4))
        assert query.view(np.uint32).tolist() == interleaved[[0, 1, 4, 5]].tolist()
        reshaped = artifact.decode_parameter("text/reshaped", (2, 4, 4))
        assert reshaped.view(np.uint32).tolist() == interleaved.reshape(2, 4, 4).tolist()
        assert artifact.decode_parameter("text/row1_q4").tobytes() == q4[1].tobytes()
        mixed = artifact.decode_parameter("text/mixed_formats", (2, 130))
        assert mixed.tobytes() == q4[0].tobytes() + q5[1].tobytes()
        assert artifact.parameter_elements("text/mixed_formats") == 260
        token_ids = artifact.decode_parameter("proposal/token_ids")
        assert token_ids.dtype == np.int32
        assert token_ids.tobytes() == arrays["w.int32.special|words"].tobytes()


def test_unknown_encoding_spoils_only_its_object(conformance: Path) -> None:
    path = conformance / "artifacts/tolerated/unknown_encoding_present.ninfer"
    wanted = expected(path)
    with open_artifact(path) as artifact:
        raw = wanted["raw_range_of_w.a"]
        assert sha256(artifact.read_range(raw["offset"], raw["length"])) == raw["sha256"]
        for object_id, result in wanted["objects"].items():
            if result.startswith("error"):
                with pytest.raises(ArtifactError, match="future_v9"):
                    artifact.read_object(object_id)
            else:
                assert sha256(artifact.read_object(object_id).tobytes()) == result


def test_partial_distribution_serves_what_it_has(conformance: Path) -> None:
    path = conformance / "artifacts/tolerated/partial_distribution.ninfer"
    wanted = expected(path)
    with open_artifact(path) as artifact:
        for object_id in wanted["must_fail"]:
            with pytest.raises(FileNotFoundError):
                artifact.read_object(object_id)
        for object_id, digest in wanted["readable"].items():
            assert sha256(artifact.read_object(object_id).tobytes()) == digest
