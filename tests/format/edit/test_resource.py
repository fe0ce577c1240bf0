from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import (
    Artifact,
    ArtifactError,
    Component,
    ResourceSpec,
    UsageError,
    open_artifact,
    replace_resource,
)
from ninfer_format.edit.resource import replaced_payload_bytes

Hashes = Callable[[Artifact], dict[str, str]]
WriteModel = Callable[..., Path]

TEMPLATE = b"{% for message in messages %}{{ message }}{% endfor %}"


def others(hashes: dict[str, str], object_id: str) -> dict[str, str]:
    return {key: value for key, value in hashes.items() if key != object_id}


@pytest.mark.parametrize("data", [b"x", TEMPLATE * 500])
def test_the_last_object_is_replaced_where_it_is(
    base: Artifact, tmp_path: Path, hashes: Hashes, data: bytes
):
    out = replace_resource(base, tmp_path / "o.ninfer", "text", "chat_template.jinja", data)
    with open_artifact(out) as edited:
        assert edited.resource("text", "chat_template.jinja") == data
        old = base.directory.objects[-1]
        assert edited.directory.objects[-1] == replace(old, num_bytes=len(data))
        assert edited.payload_bytes == old.offset + len(data)
        assert others(hashes(edited), old.id) == others(hashes(base), old.id)
        assert edited.directory.components == base.directory.components
        assert edited.directory.uses == base.directory.uses
        assert edited.artifact_id != base.artifact_id


def test_another_object_goes_behind_the_payload_and_leaves_a_gap(
    base: Artifact, tmp_path: Path, hashes: Hashes
):
    out = replace_resource(base, tmp_path / "o.ninfer", "text", "tokenizer.json", b'{"a": 1}')
    with open_artifact(out) as edited:
        size = base.payload_bytes
        assert edited.read_range(0, size) == base.read_range(0, size)
        assert edited.directory.objects[-1].id == "tokenizer"
        assert edited.directory.objects[-1].offset == size
        assert edited.payload_bytes == size + 8
        assert edited.resource("text", "tokenizer.json") == b'{"a": 1}'
        assert others(hashes(edited), "tokenizer") == others(hashes(base), "tokenizer")


def test_replacing_again_does_not_grow_the_payload(base: Artifact, tmp_path: Path):
    first = replace_resource(base, tmp_path / "1.ninfer", "text", "tokenizer.json", b'{"a": 1}')
    with open_artifact(first) as once:
        second = replace_resource(once, tmp_path / "2.ninfer", "text", "tokenizer.json", b"{}")
    with open_artifact(second) as twice:
        assert twice.payload_bytes == base.payload_bytes + 2


def test_an_object_behind_which_the_payload_goes_on_is_not_cut(
    conformance: Path, tmp_path: Path, hashes: Hashes
):
    with open_artifact(conformance / "artifacts/tolerated/gaps.ninfer") as gaps:
        component, role = next(
            (name, role)
            for name, item in gaps.directory.components.items()
            for role in item.resources
        )
        out = replace_resource(gaps, tmp_path / "o.ninfer", component, role, b"new")
        with open_artifact(out) as edited:
            size = gaps.payload_bytes
            assert edited.read_range(0, size) == gaps.read_range(0, size)
            assert edited.resource(component, role) == b"new"


def test_the_only_object_of_an_artifact_may_be_replaced(write_model: WriteModel, tmp_path: Path):
    path = write_model(
        "m.ninfer",
        [ResourceSpec("r", b"old")],
        components={"text": Component({}, resources={"x": "r"})},
        bindings={},
    )
    with open_artifact(path) as artifact:
        out = replace_resource(artifact, tmp_path / "o.ninfer", "text", "x", b"brand new")
    with open_artifact(out) as edited:
        assert edited.read_range(0, edited.payload_bytes) == b"brand new"


def test_an_object_of_several_roles_is_kept_for_the_others(
    write_model: WriteModel, base_parts: dict[str, Any], tmp_path: Path
):
    text = base_parts["components"]["text"]
    roles = {**text.resources, "copy.jinja": "template"}
    base_parts["components"]["text"] = replace(text, resources=roles)
    with open_artifact(write_model("shared.ninfer", **base_parts)) as shared:
        out = replace_resource(shared, tmp_path / "o.ninfer", "text", "copy.jinja", b"new")
        with open_artifact(out) as edited:
            assert edited.resource("text", "copy.jinja") == b"new"
            assert edited.resource("text", "chat_template.jinja") == b"{{ messages }}"
            assert edited.directory.components["text"].resources["copy.jinja"] == "template_"
            assert edited.directory.objects[:-1] == shared.directory.objects


def test_every_role_of_every_component_may_be_replaced(
    all_formats: Artifact, tmp_path: Path, hashes: Hashes
):
    before = hashes(all_formats)
    for component, item in all_formats.directory.components.items():
        for role, object_id in item.resources.items():
            out = replace_resource(
                all_formats, tmp_path / f"{object_id}.ninfer", component, role, b"new bytes"
            )
            with open_artifact(out) as edited:
                assert edited.resource(component, role) == b"new bytes"
                assert others(hashes(edited), object_id) == others(before, object_id)


@pytest.mark.parametrize("role", ["head", "tail"])
def test_an_artifact_of_several_files_may_be_edited(
    multipart: Artifact, tmp_path: Path, hashes: Hashes, role: str
):
    data = bytes(range(256)) * 80
    counts: list[int] = []
    out = replace_resource(
        multipart,
        tmp_path / "o.ninfer",
        "text",
        role,
        data,
        max_file_bytes=16384,
        advance=counts.append,
    )
    object_id = multipart.directory.components["text"].resources[role]
    with open_artifact(out) as edited:
        assert len(edited.directory.files) > 4
        assert edited.resource("text", role) == data
        assert others(hashes(edited), object_id) == others(hashes(multipart), object_id)
    assert sum(counts) == replaced_payload_bytes(multipart, "text", role, data)


@pytest.mark.parametrize(
    ("component", "role"), [("text", "merges.txt"), ("vision", "tokenizer.json"), ("mtp", "x")]
)
def test_a_role_that_is_not_there_is_an_error(
    base: Artifact, tmp_path: Path, component: str, role: str
):
    with pytest.raises(ArtifactError, match="has no resource") as caught:
        replace_resource(base, tmp_path / "o.ninfer", component, role, b"x")
    assert caught.value.category == "reference"
    assert not (tmp_path / "o.ninfer").exists()


def test_an_empty_resource_and_the_same_bytes_are_errors(base: Artifact, tmp_path: Path):
    with pytest.raises(ArtifactError, match="resource is empty") as caught:
        replace_resource(base, tmp_path / "o.ninfer", "text", "tokenizer.json", b"")
    assert caught.value.category == "schema"
    with pytest.raises(UsageError, match="has these bytes already"):
        replace_resource(
            base, tmp_path / "o.ninfer", "text", "chat_template.jinja", b"{{ messages }}"
        )
    assert not (tmp_path / "o.ninfer").exists()
