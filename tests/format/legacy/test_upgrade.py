"""Version 1 and 2 files as version 3 artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    ArtifactError,
    BindingTable,
    GroupedWords,
    LegacyArtifact,
    open_artifact,
    open_legacy,
    parse_table,
    upgrade_artifact,
)

OFFICIAL = "official_qwen3_6_27b_groupwise_int"

WriteLegacy = Callable[..., Path]
Place = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def expected(legacy: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((legacy / "tiny_v3.expected.json").read_text("utf-8"))
    return document


@pytest.fixture(scope="module")
def template(legacy: Path) -> bytes:
    return (legacy / "tiny_new_template.jinja").read_bytes()


def tiny_table(artifact: LegacyArtifact, expected: dict[str, Any]) -> BindingTable:
    members = {key: expected["directory"][key] for key in ("components", "bindings", "uses")}
    return parse_table(json.dumps(members).encode(), artifact.directory)


def upgraded(source: Path, out: Path, expected: dict[str, Any], **options: Any) -> Path:
    with open_legacy(source) as artifact:
        return upgrade_artifact(artifact, out, tiny_table(artifact, expected), **options)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- the reference's own upgrade -------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 2])
def tiny_v3(
    request: pytest.FixtureRequest,
    legacy: Path,
    expected: dict[str, Any],
    template: bytes,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[int, Path]:
    """Version of the source, and the upgraded file."""
    folder = tmp_path_factory.mktemp("upgraded")
    source = legacy / f"tiny_v{request.param}.ninfer"
    out = upgraded(source, folder / "tiny_v3.ninfer", expected, chat_template=template)
    return request.param, out


def test_the_directory_is_that_of_the_reference(
    tiny_v3: tuple[int, Path], expected: dict[str, Any]
):
    version, path = tiny_v3
    wanted = json.loads(json.dumps(expected["directory"]))
    if version == 1:
        wanted["provenance"] = {"upgraded_from": {"version": 1, "model_id": "tiny"}}
    with open_artifact(path) as artifact:
        assert artifact.directory.to_json() == wanted


def test_files_and_payload_are_those_of_the_reference(
    tiny_v3: tuple[int, Path], expected: dict[str, Any], legacy: Path
):
    _, path = tiny_v3
    data = path.read_bytes()
    (file,) = expected["files"]
    assert len(data) == file["file_bytes"] == expected["total_file_bytes"]
    assert int.from_bytes(data[8:16], "little") == expected["json_bytes"]
    assert data[32 + expected["json_bytes"] :] == data[expected["entry_payload_start"] :]
    reference = (legacy / "tiny_v3.ninfer").read_bytes()
    assert data[file["payload_start"] :] == reference[file["payload_start"] :]
    with open_artifact(path) as artifact:
        assert artifact.payload_bytes == expected["payload_bytes"]
        payload = artifact.read_range(0, artifact.payload_bytes)
        assert sha256(payload) == expected["logical_payload_sha256"]
        for wanted in expected["objects"]:
            assert sha256(artifact.read_object(wanted["id"]).tobytes()) == wanted["sha256"]
            for name, (offset, num_bytes) in wanted.get("planes", {}).items():
                plane = artifact.codec(wanted["id"]).geometry.planes[name]
                assert (plane.offset, plane.num_bytes) == (offset, num_bytes)


def test_words_and_values_are_those_of_the_reference(tiny_v3: tuple[int, Path], legacy: Path):
    _, path = tiny_v3
    arrays = np.load(legacy / "tiny_v3.expected.npz")
    compared = set()
    with open_artifact(path) as artifact:
        for record in artifact.directory.tensors:
            key = record.id.replace("/", "|")
            words = artifact.words(record.id)
            if isinstance(words, GroupedWords):
                values = artifact.decode_object(record.id)
                np.testing.assert_array_equal(words.codes, arrays[f"{key}|codes"])
                np.testing.assert_array_equal(
                    values.view(np.uint32), arrays[f"{key}|values_f32"].view(np.uint32)
                )
            else:
                np.testing.assert_array_equal(words, arrays[f"{key}|words"])
            compared.add(key)
    assert {name.rpartition("|")[0] for name in arrays.files} == compared


def test_the_template_moves_and_nothing_else(
    tiny_v3: tuple[int, Path], legacy: Path, template: bytes
):
    _, path = tiny_v3
    with open_legacy(legacy / "tiny_v2.ninfer") as old, open_artifact(path) as new:
        *kept, moved = new.directory.objects
        assert moved.id == "frontend/chat_template.jinja"
        assert (moved.offset % 256, moved.num_bytes) == (0, len(template))
        assert new.resource("text", "chat_template.jinja") == template
        assert kept == [record for record in old.directory.objects if record.id != moved.id]
        size = old.payload.num_bytes
        assert new.read_range(0, size) == old.payload.read(0, size)
        assert not any(new.read_range(size, moved.offset - size))


# --- options ---------------------------------------------------------------------------------


def test_without_a_template_nothing_moves(legacy: Path, expected: dict[str, Any], tmp_path: Path):
    out = upgraded(legacy / "tiny_v2.ninfer", tmp_path / "o.ninfer", expected)
    with open_legacy(legacy / "tiny_v2.ninfer") as old, open_artifact(out) as new:
        assert new.directory.objects == old.directory.objects
        assert new.payload_bytes == old.payload.num_bytes
        assert (
            new.resource("text", "chat_template.jinja")
            == old.read_object("frontend/chat_template.jinja").tobytes()
        )


def test_the_result_may_be_cut_into_files(
    legacy: Path, expected: dict[str, Any], template: bytes, tmp_path: Path
):
    out = upgraded(
        legacy / "tiny_v2.ninfer",
        tmp_path / "o.ninfer",
        expected,
        chat_template=template,
        max_file_bytes=8192 + 4096,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.ninfer", "o.ninfer.part-0001"]
    with open_artifact(out) as artifact:
        payload = artifact.read_range(0, artifact.payload_bytes)
        assert sha256(payload) == expected["logical_payload_sha256"]


def test_progress_counts_what_is_copied(
    legacy: Path, expected: dict[str, Any], template: bytes, tmp_path: Path
):
    counts: list[int] = []
    upgraded(
        legacy / "tiny_v2.ninfer",
        tmp_path / "o.ninfer",
        expected,
        chat_template=template,
        advance=counts.append,
    )
    assert sum(counts) == 4868 + len(template)


def test_new_files_have_the_permissions_of_new_files(
    legacy: Path, expected: dict[str, Any], tmp_path: Path
):
    old = os.umask(0o022)
    try:
        out = upgraded(legacy / "tiny_v2.ninfer", tmp_path / "o.ninfer", expected)
    finally:
        os.umask(old)
    assert stat.S_IMODE(out.stat().st_mode) == 0o644


def test_two_upgrades_have_two_ids(legacy: Path, expected: dict[str, Any], tmp_path: Path):
    ids = set()
    for name in ("a", "b"):
        out = upgraded(legacy / "tiny_v2.ninfer", tmp_path / f"{name}.ninfer", expected)
        with open_artifact(out) as artifact:
            ids.add(artifact.artifact_id)
    assert len(ids) == 2


def test_an_existing_file_is_not_replaced(legacy: Path, expected: dict[str, Any], tmp_path: Path):
    (tmp_path / "o.ninfer").write_text("precious", encoding="utf-8")
    with pytest.raises(FileExistsError):
        upgraded(legacy / "tiny_v2.ninfer", tmp_path / "o.ninfer", expected)
    assert (tmp_path / "o.ninfer").read_text("utf-8") == "precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_table_without_a_template_has_none_to_replace(
    legacy: Path, expected: dict[str, Any], tmp_path: Path
):
    with open_legacy(legacy / "tiny_v2.ninfer") as artifact:
        table = tiny_table(artifact, expected)
        text = replace(table.components["text"], resources={})
        table = replace(table, components={**table.components, "text": text})
        with pytest.raises(ArtifactError, match=r"no resource 'chat_template.jinja'") as caught:
            upgrade_artifact(artifact, tmp_path / "o.ninfer", table, chat_template=b"x")
    assert caught.value.category == "reference"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "category"),
    [
        (0x00000000, "codec"),
        (0x80000000, "codec"),
        (0xBF800000, "codec"),
        (0x7F800000, "codec"),
        (0x7FC00000, "codec"),
        (0x00000001, None),
        (0x7F7FFFFF, None),
    ],
)
def test_an_activation_scalar_is_finite_and_positive(
    legacy: Path,
    expected: dict[str, Any],
    tmp_path: Path,
    word: int,
    category: str | None,
):
    data = bytearray((legacy / "tiny_v2.ninfer").read_bytes())
    data[-4:] = word.to_bytes(4, "little")
    (tmp_path / "v2").mkdir()
    source = tmp_path / "v2" / "tiny.ninfer"
    source.write_bytes(data)
    out = tmp_path / "o.ninfer"
    if category is None:
        assert upgraded(source, out, expected) == out
        return
    with pytest.raises(ArtifactError, match="finite number above 0") as caught:
        upgraded(source, out, expected)
    assert caught.value.category == category
    assert str(caught.value.object_id).endswith("/input_scale_divisor")
    assert not out.exists()


@pytest.mark.parametrize(("shape", "format_name"), [((1,), "FP32"), ((), "BF16")])
def test_an_activation_scalar_is_one_fp32_number(
    write_legacy: WriteLegacy,
    place: Place,
    tmp_path: Path,
    shape: tuple[int, ...],
    format_name: str,
):
    objects = place([("text/x/input_scale_divisor", shape, format_name)], {})
    root = {"identity": {"model_id": "m", "weights_id": "w"}, "objects": objects}
    table = BindingTable({}, {}, ())
    path = write_legacy(root, bytes(objects[0]["bytes"]))
    with (
        open_legacy(path) as artifact,
        pytest.raises(ArtifactError, match="is no fp32 scalar"),
    ):
        upgrade_artifact(artifact, tmp_path / "o.ninfer", table)
