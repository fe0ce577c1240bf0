"""Attaching a component of another artifact."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import (
    Artifact,
    Binding,
    Component,
    Part,
    ResourceSpec,
    TensorRecord,
    TensorSpec,
    Use,
    attach_component,
    open_artifact,
)
from ninfer_format.edit.attachment import plan_attachment

Hashes = Callable[[Artifact], dict[str, str]]
WriteModel = Callable[..., Path]
Parts = dict[str, Any]

BLOCK = "dflash2/layers/0/attention/"
IDS = {
    "draft.qkv": "import/dflash2/draft.qkv",
    "draft.scalar": "import/dflash2/draft.scalar",
    "draft.output": "import/dflash2/draft.output",
    "head": "import/dflash2/head",
    "draft.notes": "import/dflash2/draft.notes",
}


@pytest.fixture
def attached(base: Artifact, donor: Artifact, tmp_path: Path) -> Any:
    with open_artifact(attach_component(base, donor, tmp_path / "o.ninfer", "dflash2")) as artifact:
        yield artifact


# --- what comes out --------------------------------------------------------------------------


def test_everything_of_the_base_is_kept(attached: Artifact, base: Artifact, hashes: Hashes):
    before, after = base.directory, attached.directory
    count = len(before.objects)
    assert after.objects[:count] == before.objects
    assert attached.read_range(0, base.payload_bytes) == base.read_range(0, base.payload_bytes)
    assert {key: value for key, value in hashes(attached).items() if key in hashes(base)} == hashes(
        base
    )
    for name, component in before.components.items():
        assert after.components[name] == component
    for name, binding in before.bindings.items():
        assert after.bindings[name] == binding
    assert after.uses[: len(before.uses)] == before.uses
    assert after.metadata == {"name": "base"}
    assert attached.artifact_id not in (base.artifact_id, b"")


def test_the_objects_of_the_component_are_copied_under_new_ids(
    attached: Artifact, base: Artifact, donor: Artifact, hashes: Hashes
):
    before, after = hashes(donor), hashes(attached)
    added = [record.id for record in attached.directory.objects[len(base.directory.objects) :]]
    assert added == list(IDS.values())
    for old, new in IDS.items():
        assert after[new] == before[old]


def test_divisors_and_bit_rates_are_kept(attached: Artifact, donor: Artifact):
    for old, new in IDS.items():
        source, copy = donor.record(old), attached.record(new)
        assert copy == replace(source, id=new, offset=copy.offset)
        if isinstance(copy, TensorRecord):
            assert copy.offset % 256 == 0
    stacked, trellis = attached.record(IDS["draft.qkv"]), attached.record(IDS["draft.output"])
    assert isinstance(stacked, TensorRecord)
    assert isinstance(trellis, TensorRecord)
    assert stacked.divisors == 3
    assert trellis.bitrate_half_bits == 5


def test_component_bindings_and_uses_point_to_the_copies(attached: Artifact):
    directory = attached.directory
    assert directory.components["dflash2"] == Component(
        {"layers": 1}, "text", {"notes.txt": IDS["draft.notes"]}
    )
    assert attached.resource("dflash2", "notes.txt") == b"notes of the drafter"
    key = Part(IDS["draft.qkv"], 128 * 64, 256 * 64)
    assert directory.bindings[f"{BLOCK}key"] == Binding(parts=(key,))
    assert directory.bindings[f"{BLOCK}context_key"] == Binding(parts=(key,))
    assert directory.bindings[f"{BLOCK}output"] == Binding(object=IDS["draft.output"])
    uses = {use.parameter: use for use in directory.uses}
    assert uses[f"{BLOCK}query"] == Use(
        f"{BLOCK}query",
        "dflash2/layers/0/query_projection_input",
        "AllowA4",
        {"activation_input_divisor": Binding(object=IDS["draft.scalar"])},
    )


def test_the_heads_are_used_as_the_base_uses_them(attached: Artifact):
    """The donor's head is BF16; the base's is NVFP4 with a scalar of its own."""
    uses = [use for use in attached.directory.uses if use.input == "dflash2/final_hidden"]
    scalar = {"activation_input_divisor": Binding(object="scalar")}
    assert uses == [
        Use("text/output_head", "dflash2/final_hidden", "AllowA4", scalar),
        Use("proposal/head", "dflash2/final_hidden", "A16Only"),
    ]


def test_provenance_tells_where_the_component_is_from(
    attached: Artifact, base: Artifact, donor: Artifact
):
    assert attached.directory.provenance == {
        "made_from": "base checkpoint",
        "component_imports": [
            {
                "component": "dflash2",
                "operation": "encoded-byte-copy",
                "source_file": "donor.ninfer",
                "source_artifact_id": donor.artifact_id.hex(),
                "source_provenance": {"recipe": "draft recipe"},
                "base_artifact_id": base.artifact_id.hex(),
            }
        ],
    }


def test_the_report_has_a_hash_of_every_object(
    attached: Artifact, base: Artifact, donor: Artifact, hashes: Hashes
):
    text = attached.path.with_name("o.ninfer.attach.json").read_text("utf-8")
    report = json.loads(text)
    assert report["component"] == "dflash2"
    assert report["operation"] == "encoded-byte-copy"
    for key, artifact in (("output", attached), ("base", base), ("donor", donor)):
        identity = {"file": artifact.path.name, "artifact_id": artifact.artifact_id.hex()}
        assert report[key] == identity
    assert {item["id"]: item["sha256"] for item in report["objects"]} == hashes(attached)
    origins = {item["id"]: (item["from"], item["source_id"]) for item in report["objects"]}
    assert origins["head"] == ("base", "head")
    assert origins[IDS["head"]] == ("donor", "head")
    assert str(attached.path.parent) not in text


def test_progress_counts_copying_and_hashing(base: Artifact, donor: Artifact, tmp_path: Path):
    counts: list[int] = []
    attach_component(base, donor, tmp_path / "o.ninfer", "dflash2", advance=counts.append)
    assert sum(counts) == plan_attachment(base, donor, "dflash2").work_bytes


def test_all_artifacts_may_have_several_files(
    write_model: WriteModel, base_parts: Parts, donor_parts: Parts, tmp_path: Path, hashes: Hashes
):
    with (
        open_artifact(write_model("b.ninfer", **base_parts, max_file_bytes=8192)) as base,
        open_artifact(write_model("d.ninfer", **donor_parts, max_file_bytes=8192 * 2)) as donor,
    ):
        assert len(base.directory.files) > 1
        assert len(donor.directory.files) > 1
        out = attach_component(base, donor, tmp_path / "o.ninfer", "dflash2", max_file_bytes=12288)
        with open_artifact(out) as artifact:
            assert len(artifact.directory.files) > 3
            after, before = hashes(artifact), hashes(donor)
            assert {new: after[new] for new in IDS.values()} == {
                new: before[old] for old, new in IDS.items()
            }


def test_a_taken_id_gets_an_underscore(
    write_model: WriteModel, base_parts: Parts, donor: Artifact, tmp_path: Path
):
    base_parts["specs"] += [
        TensorSpec("import/dflash2/head", (1,), "fp32", "contiguous_le_v1"),
        TensorSpec("import/dflash2/head_", (1,), "fp32", "contiguous_le_v1"),
    ]
    with open_artifact(write_model("b.ninfer", **base_parts)) as base:
        out = attach_component(base, donor, tmp_path / "o.ninfer", "dflash2")
    with open_artifact(out) as artifact:
        binding = artifact.directory.bindings["dflash2/final_norm"]
        assert binding == Binding(object="import/dflash2/head__")


def test_a_second_import_is_added_to_the_list(
    attached: Artifact, write_model: WriteModel, donor_parts: Parts, tmp_path: Path
):
    donor_parts["components"]["vision"] = Component({}, "text", {"p.json": "pixels"})
    donor_parts["specs"] += [
        ResourceSpec("pixels", b"{}"),
        TensorSpec("patch", (4, 4), "bf16", "contiguous_le_v1"),
    ]
    donor_parts["bindings"]["vision/patch"] = Binding(object="patch")
    donor_parts["uses"].append(Use("vision/patch", "vision/patch_input", "A16Only"))
    with open_artifact(write_model("v.ninfer", **donor_parts)) as donor:
        out = attach_component(attached, donor, tmp_path / "2.ninfer", "vision")
    with open_artifact(out) as artifact:
        imports = artifact.directory.provenance["component_imports"]
        assert [item["component"] for item in imports] == ["dflash2", "vision"]
        assert artifact.resource("vision", "p.json") == b"{}"
        # A tower that drafts nothing meets no head.
        uses = [use for use in artifact.directory.uses if use.input.startswith("vision/")]
        assert [use.parameter for use in uses] == ["vision/patch"]


def test_a_base_without_a_proposal_head_needs_no_use_of_it(
    write_model: WriteModel, base_parts: Parts, donor_parts: Parts, tmp_path: Path
):
    base_parts["bindings"] = {"text/output_head": Binding(object="head")}
    base_parts["uses"] = base_parts["uses"][:2]
    donor_parts["bindings"]["proposal/head"] = Binding(object="head")
    donor_parts["uses"].append(Use("proposal/head", "dflash2/final_hidden", "A16Only"))
    with (
        open_artifact(write_model("b.ninfer", **base_parts)) as base,
        open_artifact(write_model("d.ninfer", **donor_parts)) as donor,
    ):
        out = attach_component(base, donor, tmp_path / "o.ninfer", "dflash2")
    with open_artifact(out) as artifact:
        uses = [use for use in artifact.directory.uses if use.input == "dflash2/final_hidden"]
        assert [use.parameter for use in uses] == ["text/output_head"]
