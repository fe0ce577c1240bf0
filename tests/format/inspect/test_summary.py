"""The summary and the lists of an artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    Binding,
    Component,
    Part,
    ResourceSpec,
    TensorSpec,
    Use,
    grouped_absmax,
    open_artifact,
)


def test_the_summary_names_everything(inspect: Any, all_formats: Path) -> None:
    code, out, err = inspect(all_formats)
    assert (code, err) == (0, "")
    for text in (
        str(all_formats),
        "version 3",
        "1d48faf7c7844c789373cba21ebd9be4",
        "conformance-all-formats",
        "Qwen3_5ForCausalLM",
        "36 (32 tensors, 4 resources)",
        "exl3_mul1",
        "trellis_t16_v1",
        "vision",
        "tokenizer.json",
    ):
        assert text in out


def test_tables_are_whole_however_narrow_the_terminal(
    inspect: Any, all_formats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = inspect(all_formats)[1]
    assert "…" not in out
    assert "fp8_e4m3fn_row_bf16" in out
    assert "block_scale_k16_m128x4_v1" in out


def test_bars_are_as_long_as_the_shares(document: Any, inspect: Any, all_formats: Path) -> None:
    out = inspect(all_formats)[1]
    shares = {n: f["share"] for n, f in document(all_formats)["formats"].items()}
    largest = max(shares.values())
    for name, share in shares.items():
        line = next(line for line in out.splitlines() if line.startswith(f"{name} "))
        bar = line.split()[-1]
        eighths = sum("▏▎▍▌▋▊▉█".index(character) + 1 for character in bar)
        assert eighths == max(1, round(share / largest * 96))


def test_the_document_has_these_members(document: Any, all_formats: Path) -> None:
    found = document(all_formats)
    assert list(found) == [
        "schema",
        "ok",
        "path",
        "kind",
        "version",
        "artifact_id",
        "name",
        "architecture",
        "files",
        "file_bytes",
        "payload_bytes",
        "objects",
        "tensors",
        "resources",
        "bindings",
        "uses",
        "parameters",
        "bits_per_weight",
        "formats",
        "layouts",
        "encodings",
        "components",
        "unassigned_objects",
    ]
    expected = json.loads(all_formats.with_suffix(".expected.json").read_text())
    assert found["kind"] == "ninfer"
    assert found["version"] == 3
    assert found["artifact_id"] == expected["artifact_id"]
    assert found["file_bytes"] == expected["total_file_bytes"]
    assert found["payload_bytes"] == expected["payload_bytes"]
    tensors = [o for o in expected["directory"]["objects"] if o["kind"] == "tensor"]
    assert found["tensors"] == len(tensors)
    assert found["resources"] == len(expected["directory"]["objects"]) - len(tensors)
    assert found["encodings"] == {"raw_bytes_v1": found["resources"]}
    for member, key in (("formats", "format"), ("layouts", "layout")):
        for name, share in found[member].items():
            same = [o for o in tensors if o[key] == name]
            assert share["tensors"] == len(same)
            assert share["bytes"] == sum(o["bytes"] for o in same)
            assert share["share"] == pytest.approx(
                share["bytes"] / found["payload_bytes"], abs=1e-6
            )
    assert list(found["components"]["mtp"]) == [
        "architecture",
        "target",
        "objects",
        "bytes",
        "resources",
        "proposal",
    ]
    assert found["components"]["mtp"]["target"] == "text"


def test_parameters_and_bits_leave_integers_out(document: Any, write_artifact: Any) -> None:
    path = write_artifact(
        [
            TensorSpec("w", (128, 256), "q4_g64_fp16", "row_split_k128_v1"),
            TensorSpec("ids", (1000,), "int32", "contiguous_le_v1"),
        ],
        {
            "w": grouped_absmax(np.ones((128, 256)), "q4_g64_fp16"),
            "ids": np.arange(1000, dtype=np.int32),
        },
    )
    found = document(path)
    assert found["parameters"] == 128 * 256
    assert found["bits_per_weight"] == 4.25
    assert found["architecture"] is None


def test_sizes_of_components(document: Any, write_artifact: Any) -> None:
    """A component needs its parameters, their divisors and resources; objects may be shared."""
    sizes = {"a": 100, "b": 200, "c": 300, "d": 1, "e": 50, "lost": 7}
    specs = [TensorSpec(name, (n,), "fp32", "contiguous_le_v1") for name, n in sizes.items()]
    path = write_artifact(
        [*specs, ResourceSpec("r", b"12345")],
        {name: np.zeros(n, np.uint32) for name, n in sizes.items()},
        components={
            "text": Component({}, resources={"tokenizer.json": "r"}),
            "mtp": Component({}, target="text"),
        },
        bindings={
            "text/a": Binding(object="a"),
            "text/b": Binding(parts=(Part("b", 0, 10), Part("c", 0, 10))),
            "mtp/c": Binding(object="c"),
            "proposal/head": Binding(object="e"),
            "other/lost": Binding(object="lost"),
        },
        uses=[Use("mtp/c", "x", None, {"activation_input_divisor": Binding(object="d")})],
    )
    found = document(path)
    text, mtp = found["components"]["text"], found["components"]["mtp"]
    assert (text["objects"], text["bytes"]) == (5, 4 * (100 + 200 + 300 + 50) + 5)
    assert (mtp["objects"], mtp["bytes"]) == (2, 4 * 301)
    assert found["unassigned_objects"] == 1


def test_records_are_those_of_the_directory(document: Any, all_formats: Path) -> None:
    found = document(all_formats, "--objects", "--bindings", "--resources")
    directory = json.loads(all_formats.with_suffix(".expected.json").read_text())["directory"]
    assert found["object_records"] == directory["objects"]
    assert found["binding_records"] == directory["bindings"]
    assert found["use_records"] == directory["uses"]
    assert {(r["component"], r["role"]) for r in found["resource_records"]} == {
        (name, role)
        for name, component in directory["components"].items()
        for role in component.get("resources", {})
    }
    assert document(all_formats, "--uses")["use_records"] == directory["uses"]
    assert found["binding_sizes"].keys() == directory["bindings"].keys()
    # Half of an object of two divisors: half of its elements and of its bytes.
    half = next(o for o in directory["objects"] if o["id"] == "w.nvfp4.256x128.d2")
    assert found["binding_sizes"]["text/nvfp4_second"] == {
        "elements": 128 * 128,
        "bytes": half["bytes"] // 2,
    }


def line_with(text: str, out: str) -> str:
    (line,) = [line for line in out.splitlines() if text in line]
    return " ".join(line.split())


def test_lists_have_one_line_for_each_entry(inspect: Any, all_formats: Path) -> None:
    out = inspect(all_formats, "--objects")[1]
    assert line_with("w.q5.5x256", out) == (
        "5632 1064 tensor q5_g64_fp16/row_split_k128_v1 [5, 256] w.q5.5x256"
    )
    assert line_with("w.exl3.hb5.s2", out) == (
        "46592 12288 tensor exl3_mul1/trellis_t16_v1 divisors=2 bits=2.5 [256, 128] w.exl3.hb5.s2"
    )
    assert line_with("r.odd", out) == "333 251 resource raw_bytes_v1 - r.odd"
    out = inspect(all_formats, "--bindings")[1]
    assert line_with("text/query", out) == (
        "text/query 16 32 bytes w.interleaved rows 0:2 + w.interleaved rows 4:6"
    )
    assert line_with("text/nvfp4_second", out) == (
        "text/nvfp4_second 16384 9.00 KiB w.nvfp4.256x128.d2 rows 128:256 "
        "text/ffn_input AllowA4 activation_input_divisor=a.divisors elements 1:2"
    )
    out = inspect(all_formats, "--uses")[1]
    assert line_with("text/nvfp4_second", out) == (
        "text/nvfp4_second text/ffn_input AllowA4 activation_input_divisor=a.divisors elements 1:2"
    )
    out = inspect(all_formats, "--resources")[1]
    assert line_with("r.template", out) == "text chat_template.jinja 35 r.template"


# --- selection -------------------------------------------------------------------------------


def test_a_selection_filters_every_list(document: Any, all_formats: Path) -> None:
    found = document(all_formats, "--objects", "--bindings", "--resources", "--select", "*nvfp4*")
    all_ids = [record["id"] for record in document(all_formats, "--objects")["object_records"]]
    selected = [record["id"] for record in found["object_records"]]
    assert selected == [name for name in all_ids if "nvfp4" in name]
    assert len(selected) == 2
    assert set(found["binding_records"]) == {
        name for name in document(all_formats, "--bindings")["binding_records"] if "nvfp4" in name
    }
    assert all("nvfp4" in use["parameter"] for use in found["use_records"])
    assert found["resource_records"] == []
    found = document(all_formats, "--resources", "--select", "text/*.jinja")
    assert [record["role"] for record in found["resource_records"]] == ["chat_template.jinja"]


def test_a_selection_is_case_sensitive_and_over_the_full_name(
    inspect: Any, all_formats: Path
) -> None:
    for pattern in ("TEXT/*", "query"):
        code, out, err = inspect(all_formats, "--bindings", "--select", pattern)
        assert (code, out) == (2, "")
        assert f"--select {pattern!r} matches nothing" in err


def test_a_selection_that_matches_nothing_names_the_nearest(
    inspect: Any, all_formats: Path
) -> None:
    for pattern, nearest in [
        ("text/quer", "text/query"),
        ("txt/nvfp4_second", "text/nvfp4_second"),
        ("text/nvfp4_sec*d2", "text/nvfp4_second"),
    ]:
        assert (
            f"the nearest is {nearest})"
            in inspect(all_formats, "--bindings", "--select", pattern)[2]
        )


# --- contents --------------------------------------------------------------------------------


def test_one_resource_is_printed_byte_for_byte(
    inspect: Any, document: Any, all_formats: Path
) -> None:
    with open_artifact(all_formats) as artifact:
        text = artifact.resource("text", "chat_template.jinja").decode()
    for name in ("chat_template.jinja", "text/chat_template.jinja"):
        assert inspect(all_formats, "--resource", name) == (0, text, "")
    found = document(all_formats, "--resource", "chat_template.jinja")
    assert (found["component"], found["text"]) == ("text", text)


def test_a_resource_that_is_absent_lists_those_that_are_there(
    inspect: Any, all_formats: Path
) -> None:
    code, out, err = inspect(all_formats, "--resource", "nothing")
    assert (code, out) == (3, "")
    assert "no such resource" in err
    assert "did you mean" not in err
    _, _, err = inspect(all_formats, "--resource", "chat_template.json")
    assert "did you mean chat_template.jinja?" in err
    assert "text/tokenizer.json" in err


def test_a_role_of_two_components_must_be_told_apart(inspect: Any, write_artifact: Any) -> None:
    path = write_artifact(
        [ResourceSpec("r", b"one"), ResourceSpec("s", b"\xff")],
        components={
            "text": Component({}, resources={"x": "r"}),
            "mtp": Component({}, resources={"x": "s"}),
        },
    )
    code, _, err = inspect(path, "--resource", "x")
    assert code == 2
    assert "text/x, mtp/x" in err
    assert inspect(path, "--resource", "text/x")[1] == "one"
    code, _, err = inspect(path, "--resource", "mtp/x", "--json")
    assert code == 2
    assert "not text" in err


def test_configurations_are_json_in_any_case(
    inspect: Any, document: Any, all_formats: Path
) -> None:
    directory = json.loads(all_formats.with_suffix(".expected.json").read_text())["directory"]
    configs = {name: value["config"] for name, value in directory["components"].items()}
    code, out, err = inspect(all_formats, "--config")
    assert (code, err) == (0, "")
    assert json.loads(out) == configs
    assert document(all_formats, "--config")["config"] == configs
