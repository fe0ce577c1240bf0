"""Reading container versions 1 and 2."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format import ArtifactError, LegacyArtifact, open_artifact, open_legacy

WriteLegacy = Callable[..., Path]

V2_TO_V3 = {
    "BF16": "bf16",
    "FP32": "fp32",
    "I32": "int32",
    "Q4G64_F16S": "q4_g64_fp16",
    "Q5G64_F16S": "q5_g64_fp16",
    "Q6G64_F16S": "q6_g64_fp16",
    "W8G32_F16S": "q8_g32_fp16",
    "contiguous-le-v1": "contiguous_le_v1",
    "row-split-k128-v1": "row_split_k128_v1",
    "raw-bytes-v1": "raw_bytes_v1",
}


def tensor(**changes: Any) -> dict[str, Any]:
    record = {
        "name": "t",
        "kind": "tensor",
        "shape": [4],
        "format": "FP32",
        "layout": "contiguous-le-v1",
        "offset": 256,
        "bytes": 16,
    }
    return record | changes


def resource(**changes: Any) -> dict[str, Any]:
    record = {"name": "r", "kind": "resource", "encoding": "raw-bytes-v1", "offset": 0, "bytes": 5}
    return record | changes


def v2(*objects: Any) -> dict[str, Any]:
    return {"identity": {"model_id": "m", "weights_id": "w"}, "objects": list(objects)}


def v1(*objects: Any) -> dict[str, Any]:
    return {"model_id": "m", "objects": list(objects)}


def without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


PAYLOAD = b"hello" + bytes(251) + np.arange(4, dtype="<f4").tobytes()
VALID = v2(resource(), tensor())


# --- what is accepted ------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_files_of_the_reference_are_read(legacy: Path, version: str):
    expected = json.loads((legacy / "tiny.legacy.expected.json").read_text("utf-8"))
    wanted = expected[version]
    directory = wanted["directory"]
    path = legacy / wanted["file"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted["sha256"]
    with open_legacy(path) as artifact:
        assert artifact.directory.version == int(version[1])
        identity = directory.get("identity", {"model_id": directory.get("model_id")})
        assert artifact.directory.model_id == identity["model_id"]
        assert artifact.directory.weights_id == identity.get("weights_id")
        assert artifact.payload.num_bytes == expected["payload_bytes"]
        assert len(artifact.directory.objects) == len(directory["objects"])
        for record, item in zip(artifact.directory.objects, directory["objects"], strict=True):
            translated = {
                key: V2_TO_V3.get(value, value) if isinstance(value, str) else value
                for key, value in item.items()
            }
            assert record.to_json() == {"id": translated.pop("name"), **translated}
            data = artifact.read_object(item["name"]).tobytes()
            assert hashlib.sha256(data).hexdigest() == expected["object_sha256"][item["name"]]


def test_both_versions_have_the_same_payload(legacy: Path):
    with (
        open_legacy(legacy / "tiny_v1.ninfer") as one,
        open_legacy(legacy / "tiny_v2.ninfer") as two,
    ):
        assert one.payload.num_bytes == two.payload.num_bytes
        assert one.payload.read(0, one.payload.num_bytes) == two.payload.read(
            0, two.payload.num_bytes
        )
        assert one.directory.objects == two.directory.objects


def test_bytes_behind_the_last_object_belong_to_the_payload(write_legacy: WriteLegacy):
    with open_legacy(write_legacy(VALID, PAYLOAD + b"tail")) as artifact:
        assert artifact.payload.num_bytes == len(PAYLOAD) + 4
        assert artifact.read_object("r").tobytes() == b"hello"
        assert artifact.read_object("t").view("<f4").tolist() == [0, 1, 2, 3]
        assert artifact.payload.read(272, 4) == b"tail"


def test_gaps_between_objects_are_allowed(write_legacy: WriteLegacy):
    root = v2(resource(offset=3), tensor(offset=512))
    with open_legacy(write_legacy(root, bytes(528))) as artifact:
        assert [record.offset for record in artifact.directory.objects] == [3, 512]


def test_every_format_of_version_2_is_known(
    write_legacy: WriteLegacy, place: Callable[..., list[dict[str, Any]]]
):
    shapes = {"NVFP4": (128, 64), "FP8_E4M3FN_ROW_BF16S": (3, 5)}
    formats = ["BF16", "FP32", "I32", "Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S"]
    objects = place([(name, shapes.get(name, (3, 70)), name) for name in [*formats, *shapes]])
    root = v2(*objects)
    payload = bytes(objects[-1]["offset"] + objects[-1]["bytes"])
    with open_legacy(write_legacy(root, payload)) as artifact:
        assert [getattr(record, "format", None) for record in artifact.directory.objects[6:]] == [
            *list(V2_TO_V3.values())[:7],
            "nvfp4",
            "fp8_e4m3fn_row_bf16",
        ]


def test_reads_from_threads_are_whole(write_legacy: WriteLegacy):
    payload = b"hello" + bytes(251) + np.arange(2**18, dtype="<f4").tobytes()
    root = v2(resource(), tensor(shape=[2**18], bytes=2**20))
    with open_legacy(write_legacy(root, payload)) as artifact:
        wrong: list[int] = []

        def read(begin: int) -> None:
            buffer = bytearray(4096)
            for offset in range(begin, 2**20, 4096 * 4):
                artifact.payload.read_into(offset, buffer)
                if buffer != payload[offset : offset + 4096]:
                    wrong.append(offset)

        threads = [threading.Thread(target=read, args=(4096 * index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


# --- what is refused -------------------------------------------------------------------------

BAD_ROOTS: dict[str, tuple[Any, str]] = {
    "an array": ([], "schema"),
    "no objects": (without(VALID, "objects"), "schema"),
    "no identity": (without(VALID, "identity"), "schema"),
    "one member more": (VALID | {"files": []}, "schema"),
    "the root of version 1": (v1(resource(), tensor()), "schema"),
    "an empty model": (VALID | {"identity": {"model_id": "", "weights_id": "w"}}, "schema"),
    "a number as weights": (VALID | {"identity": {"model_id": "m", "weights_id": 1}}, "schema"),
    "no weights": (VALID | {"identity": {"model_id": "m"}}, "schema"),
    "objects that are no array": (VALID | {"objects": {}}, "schema"),
    "no object at all": (v2(), "schema"),
    "an object that is a string": (v2("t"), "schema"),
    "an unknown kind": (v2(tensor(kind="table")), "schema"),
    "no kind": (v2(without(tensor(), "kind")), "schema"),
    "a member too few": (v2(without(tensor(), "layout")), "schema"),
    "a member of version 3": (v2(tensor(divisors=1)), "schema"),
    "an id in place of a name": (v2(without(tensor(id="t"), "name")), "schema"),
    "an empty name": (v2(tensor(name="")), "schema"),
    "a name that is a number": (v2(tensor(name=1)), "schema"),
    "a name with a lone surrogate": (v2(tensor(name="\ud800")), "schema"),
    "a dimension of zero": (v2(tensor(shape=[0])), "schema"),
    "a dimension that is real": (v2(tensor(shape=[4.0])), "schema"),
    "a dimension that is true": (v2(tensor(shape=[True, 4])), "schema"),
    "too many elements": (v2(tensor(shape=[2**40, 2**40])), "schema"),
    "a negative offset": (v2(tensor(offset=-256)), "schema"),
    "an offset that is a string": (v2(tensor(offset="256")), "schema"),
    "no bytes": (v2(resource(bytes=0)), "schema"),
    "an end beyond 64 bits": (v2(tensor(offset=2**64 - 256, bytes=2**63)), "schema"),
    "the same name twice": (v2(resource(), tensor(name="r")), "objects"),
    "objects that overlap": (v2(resource(bytes=257), tensor()), "objects"),
    "objects out of order": (v2(tensor(), resource()), "objects"),
    "an object beyond the file": (v2(resource(), tensor(shape=[5], bytes=20)), "objects"),
    "an object far beyond the file": (v2(tensor(shape=[2**50], bytes=2**52)), "objects"),
    "an unknown format": (v2(tensor(format="F32")), "encoding"),
    "a format of version 3": (v2(tensor(format="fp32")), "encoding"),
    "an unknown layout": (v2(tensor(layout="contiguous_le_v1")), "encoding"),
    "an unknown encoding": (v2(resource(encoding="raw_bytes_v1")), "encoding"),
    "a layout for other formats": (v2(tensor(layout="row-split-k128-v1")), "encoding"),
    "a wrong size": (v2(tensor(bytes=12)), "encoding"),
    "a tensor between alignments": (v2(tensor(offset=128)), "encoding"),
    "a vector in a layout of matrices": (
        v2(tensor(format="Q4G64_F16S", layout="row-split-k128-v1")),
        "encoding",
    ),
}


@pytest.mark.parametrize("case", BAD_ROOTS)
def test_a_broken_directory_is_refused_at_open(write_legacy: WriteLegacy, case: str):
    root, category = BAD_ROOTS[case]
    path = write_legacy(root, PAYLOAD)
    with pytest.raises(ArtifactError) as caught:
        open_legacy(path)
    assert caught.value.category == category, str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "object_", [tensor(format="NVFP4"), tensor(layout="row-scale-v1"), resource(encoding="zip")]
)
def test_version_1_knows_fewer_names(write_legacy: WriteLegacy, object_: dict[str, Any]):
    with open_legacy(write_legacy(v1(resource(), tensor()), PAYLOAD, version=1)):
        pass
    with pytest.raises(ArtifactError) as caught:
        open_legacy(write_legacy(v1(object_), PAYLOAD, version=1))
    assert caught.value.category == "encoding"


def test_version_1_has_its_own_root(write_legacy: WriteLegacy):
    with pytest.raises(ArtifactError, match="lacks member 'model_id'"):
        open_legacy(write_legacy(VALID, PAYLOAD, version=1))


BAD_JSON = {
    "no JSON": b"{",
    "no UTF-8": b'{"identity": "\xff"}',
    "a member twice": json.dumps(VALID).encode()[:-1] + b', "objects": []}',
    "a name twice after its escape": b'{"objects": [], "o\\u0062jects": []}',
    "NaN": b'{"identity": NaN}',
    "text behind the value": json.dumps(VALID).encode() + b" {}",
    "a byte-order mark": b"\xef\xbb\xbf" + json.dumps(VALID).encode(),
    "a deep nest": b"[" * 100_000,
    "a huge integer": b'{"objects": ' + b"9" * 5000 + b"}",
    "a number beyond binary64": b'{"objects": 1e999}',
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_text_that_is_not_strict_json_is_refused(write_legacy: WriteLegacy, case: str):
    with pytest.raises(ArtifactError) as caught:
        open_legacy(write_legacy(BAD_JSON[case], PAYLOAD))
    assert caught.value.category == "json"


@pytest.mark.parametrize("json_bytes", [0, 10**6, 2**63, 2**64 - 1])
def test_a_wrong_length_of_the_directory_is_refused(write_legacy: WriteLegacy, json_bytes: int):
    with pytest.raises(ArtifactError, match="length of the directory is wrong") as caught:
        open_legacy(write_legacy(VALID, PAYLOAD, json_bytes=json_bytes))
    assert caught.value.category == "framing"


def test_a_directory_beyond_all_measure_is_not_read(tmp_path: Path):
    path = tmp_path / "huge.ninfer"
    with path.open("wb") as file:
        file.write(b"NINFER\0\2" + (2 * 10**8).to_bytes(8, "little"))
        file.truncate(3 * 10**8)
    with pytest.raises(ArtifactError, match="expected 1 to 100000000, found 200000000"):
        open_legacy(path)


def test_a_directory_that_would_fill_the_memory_is_not_parsed(write_legacy: WriteLegacy):
    text = b"[" + b"[]," * 1_000_000 + b"[]]"
    with pytest.raises(ArtifactError, match="directory would take too much memory") as caught:
        open_legacy(write_legacy(text, PAYLOAD))
    assert caught.value.category == "json"


@pytest.mark.parametrize("length", [0, 7, 8, 15, 16, 100, 4095, 4096])
def test_a_file_that_ends_before_its_payload_is_refused(write_legacy: WriteLegacy, length: int):
    path = write_legacy(VALID, PAYLOAD)
    os.truncate(path, length)
    with pytest.raises(ArtifactError) as caught:
        open_legacy(path)
    assert caught.value.category == "framing"


@pytest.mark.parametrize(
    ("magic", "message"),
    [
        (b"NINFER\0\3", "container version is 3 already"),
        (b"NINFER\0\0", "4e 49 4e 46 45 52 00 00"),
        (b"NINPRT\0\3", "not a .ninfer file of version 1 or 2"),
        (b"GGUF\3\0\0\0", "47 47 55 46"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path: Path, magic: bytes, message: str):
    path = tmp_path / "x.ninfer"
    path.write_bytes(magic + bytes(5000))
    with pytest.raises(ArtifactError, match=message) as caught:
        open_legacy(path)
    assert caught.value.category == "framing"


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_version_3_reader_names_the_upgrade(legacy: Path, version: str):
    path = legacy / f"tiny_v{version}.ninfer"
    with pytest.raises(ArtifactError, match=f"container version {version}") as caught:
        open_artifact(path)
    assert caught.value.hint == f"ninfer-convert upgrade {path} new.ninfer"


def test_the_command_that_is_named_can_be_pasted(legacy: Path, tmp_path: Path):
    path = tmp_path / "my model.ninfer"
    path.write_bytes((legacy / "tiny_v2.ninfer").read_bytes())
    with pytest.raises(ArtifactError) as caught:
        open_artifact(path)
    assert caught.value.hint == f"ninfer-convert upgrade '{path}' new.ninfer"


def test_a_pipe_and_a_folder_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="not a regular file"):
        open_legacy(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        open_legacy(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_legacy(tmp_path / "nothing")


# --- reading ---------------------------------------------------------------------------------


def test_ranges_outside_the_payload_are_refused(write_legacy: WriteLegacy):
    with open_legacy(write_legacy(VALID, PAYLOAD)) as artifact:
        artifact.payload.read_into(len(PAYLOAD), bytearray(0))
        for offset, length in ((len(PAYLOAD), 1), (-1, 1), (0, len(PAYLOAD) + 1)):
            with pytest.raises(ArtifactError) as caught:
                artifact.payload.read_into(offset, bytearray(length))
            assert caught.value.category == "range"
        with pytest.raises(ArtifactError, match="no object 'x'") as caught:
            artifact.read_object("x")
        assert caught.value.category == "reference"


def test_a_file_that_is_cut_while_it_is_open_is_an_error(write_legacy: WriteLegacy):
    path = write_legacy(VALID, PAYLOAD)
    with open_legacy(path) as artifact:
        os.truncate(path, 4200)
        with pytest.raises(ArtifactError) as caught:
            artifact.payload.read_into(256, bytearray(16))
        assert caught.value.category == "framing"


def test_nothing_is_read_after_close(write_legacy: WriteLegacy):
    artifact = open_legacy(write_legacy(VALID, PAYLOAD))
    assert isinstance(artifact, LegacyArtifact)
    artifact.close()
    with pytest.raises(ValueError, match="closed"):
        artifact.read_object("r")


# --- attacks ---------------------------------------------------------------------------------

_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.text(max_size=4),
    st.sampled_from([*V2_TO_V3, "NVFP4", "tensor", "resource"]),
    st.lists(st.integers(-1, 2**33), max_size=18),
)


@given(st.lists(st.tuples(st.sampled_from(["r", "t"]), st.text("abkos", max_size=6), _VALUES)))
def test_a_directory_with_any_members_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, Any]]
):
    objects = {"r": resource(), "t": tensor()}
    for which, key, value in changes:
        keys = sorted(objects[which])
        objects[which][keys[len(key) % len(keys)]] = copy.deepcopy(value)
    text = json.dumps(v2(*objects.values())).encode()
    path = tmp_path_factory.getbasetemp() / "changed.ninfer"
    start = -(-(16 + len(text)) // 4096) * 4096
    head = b"NINFER\0\2" + len(text).to_bytes(8, "little") + text
    path.write_bytes(head.ljust(start, b"\0") + PAYLOAD)
    with suppress(ArtifactError), open_legacy(path) as artifact:
        for record in artifact.directory.objects:
            assert artifact.read_object(record.id).nbytes == record.num_bytes


@given(st.binary(max_size=200), st.integers(0, 1200))
def test_a_file_with_any_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, position: int
):
    text = json.dumps(VALID).encode()
    data = bytearray((b"NINFER\0\2" + len(text).to_bytes(8, "little") + text).ljust(4096, b"\0"))
    data += PAYLOAD
    position = min(position, len(data) - len(noise))
    data[position : position + len(noise)] = noise
    path = tmp_path_factory.getbasetemp() / "noise.ninfer"
    path.write_bytes(data)
    with suppress(ArtifactError):
        open_legacy(path).close()
