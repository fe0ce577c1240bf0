"""``ninfer-inspect`` as a user sees it: streams, documents, exit codes, help."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from ninfer_format.cli import command, main

SCRIPT = Path(sys.executable).with_name("ninfer-inspect")


@pytest.fixture
def all_formats(conformance: Path) -> Path:
    return conformance / "artifacts/all_formats/all_formats.ninfer"


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command in this process: exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ninfer-inspect", *map(str, arguments)])
        with pytest.raises(SystemExit) as raised:
            main()
        captured = capsys.readouterr()
        return int(raised.value.code or 0), captured.out, captured.err

    return run


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


def document(inspect: Any, *arguments: object) -> dict[str, Any]:
    code, out, err = inspect(*arguments, "--json")
    assert (code, err) == (0, "")
    assert out.endswith("}\n")
    result: dict[str, Any] = json.loads(out)
    assert list(result)[:2] == ["schema", "ok"]
    assert result["schema"] == "ninfer-inspect/1"
    assert result["ok"] is True
    return result


def test_the_document_has_these_members(inspect: Any, all_formats: Path) -> None:
    found = document(inspect, all_formats)
    assert list(found) == [
        "schema",
        "ok",
        "path",
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
    ]
    expected = json.loads(all_formats.with_suffix(".expected.json").read_text())
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
    assert found["components"]["mtp"]["target"] == "text"


def test_parameters_and_bits_leave_integers_out(inspect: Any, write_artifact: Any) -> None:
    import numpy as np

    from ninfer_format import TensorSpec, grouped_absmax

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
    found = document(inspect, path)
    assert found["parameters"] == 128 * 256
    assert found["bits_per_weight"] == 4.25
    assert found["architecture"] is None


def test_records_are_those_of_the_directory(inspect: Any, all_formats: Path) -> None:
    found = document(inspect, all_formats, "--objects", "--bindings", "--resources")
    directory = json.loads(all_formats.with_suffix(".expected.json").read_text())["directory"]
    assert found["object_records"] == directory["objects"]
    assert found["binding_records"] == directory["bindings"]
    assert found["use_records"] == directory["uses"]
    assert {(r["component"], r["role"]) for r in found["resource_records"]} == {
        (name, role)
        for name, component in directory["components"].items()
        for role in component.get("resources", {})
    }


def line_with(text: str, out: str) -> str:
    (line,) = [line for line in out.splitlines() if text in line]
    return " ".join(line.split())


def test_lists_have_one_line_for_each_entry(inspect: Any, all_formats: Path) -> None:
    _, out, _ = inspect(all_formats, "--objects")
    assert line_with("w.q5.5x256", out) == (
        "5632 1064 tensor q5_g64_fp16/row_split_k128_v1 [5, 256] w.q5.5x256"
    )
    assert line_with("w.exl3.hb5.s2", out) == (
        "46592 12288 tensor exl3_mul1/trellis_t16_v1 divisors=2 bits=2.5 [256, 128] w.exl3.hb5.s2"
    )
    assert line_with("r.odd", out) == "333 251 resource raw_bytes_v1 - r.odd"
    _, out, _ = inspect(all_formats, "--bindings")
    assert line_with("text/query", out) == (
        "text/query 16 w.interleaved rows 0:2 + w.interleaved rows 4:6"
    )
    assert line_with("text/nvfp4_second", out) == (
        "text/nvfp4_second 16384 w.nvfp4.256x128.d2 rows 128:256 "
        "text/ffn_input AllowA4 activation_input_divisor=a.divisors elements 1:2"
    )
    _, out, _ = inspect(all_formats, "--resources")
    assert line_with("r.template", out) == "text chat_template.jinja 35 r.template"


def test_one_resource_is_printed_byte_for_byte(inspect: Any, all_formats: Path) -> None:
    from ninfer_format import open_artifact

    with open_artifact(all_formats) as artifact:
        text = artifact.resource("text", "chat_template.jinja").decode()
    for name in ("chat_template.jinja", "text/chat_template.jinja"):
        assert inspect(all_formats, "--resource", name) == (0, text, "")
    found = document(inspect, all_formats, "--resource", "chat_template.jinja")
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
    from ninfer_format import Component, ResourceSpec

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


def test_configurations_are_json_in_any_case(inspect: Any, all_formats: Path) -> None:
    directory = json.loads(all_formats.with_suffix(".expected.json").read_text())["directory"]
    configs = {name: value["config"] for name, value in directory["components"].items()}
    code, out, err = inspect(all_formats, "--config")
    assert (code, err) == (0, "")
    assert json.loads(out) == configs
    assert document(inspect, all_formats, "--config")["config"] == configs


def test_names_from_the_file_cannot_draw_on_the_terminal(inspect: Any, write_artifact: Any) -> None:
    from ninfer_format import Component, ResourceSpec

    path = write_artifact(
        [ResourceSpec("a\x1b[31m\nb", b"x")],
        components={"text": Component({"architectures": ["[bold]\x07"]})},
        metadata={"name": "n\r\x1b]0;title\x07"},
    )
    code, out, _ = inspect(path, "--objects")
    assert code == 0
    assert not set(out) & set("\x1b\x07\r")
    assert r"a\x1b[31m\nb" in out
    assert r"[bold]\x07" in out


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["malformed/v2_magic.ninfer"], 3, "container version 2, this release reads 3 (hint: "),
        (["malformed/part_wrong_id.p1"], 3, "continuation file 1 of an artifact"),
        (["malformed/malformed.json"], 3, "5b 0a 20 7b 0a 20 20 22"),
        (["malformed/truncated_payload.ninfer"], 3, "(expected 5124 bytes, found 5123)"),
        (["malformed/none.ninfer"], 1, "none.ninfer: no such file or directory"),
        (["malformed"], 1, "is a directory"),
        ([], 2, "missing argument 'FILE'"),
        (["malformed/valid_base.ninfer", "--objcts"], 2, "did you mean '--objects'?"),
        (["malformed/valid_base.ninfer", "--config", "--objects"], 2, "cannot be combined"),
        (["malformed/valid_base.ninfer", "--config", "--resource", "x"], 2, "cannot be combined"),
    ],
)
def test_failures_are_one_line_and_an_exit_code(
    arguments: list[str], exit_code: int, message: str, inspect: Any, conformance: Path
) -> None:
    arguments = [str(conformance / a) if not a.startswith("-") else a for a in arguments]
    code, out, err = inspect(*arguments)
    assert (code, out) == (exit_code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message.lower() in err.lower()
    assert "ArtifactError" not in err
    code, out, same = inspect(*arguments, "--json")
    assert (code, same) == (exit_code, err)
    failure = json.loads(out)
    assert failure["ok"] is False
    assert failure["error"]["message"] in err


def test_help_is_complete_and_narrow(inspect: Any) -> None:
    code, out, err = inspect("-h")
    assert (code, err) == (0, "")
    assert out == inspect("--help")[1]
    assert all(len(line) <= 80 for line in out.splitlines())
    for option in ("--objects", "--bindings", "--resources", "--resource", "--config", "--json"):
        assert option in out
    assert "Examples:" in out
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_version() -> None:
    result = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("ninfer-inspect ")
    assert result.stdout.endswith("container version 3\n")


def test_the_installed_command(all_formats: Path, tmp_path: Path) -> None:
    """The script itself: pure stdout, and a path that begins with a dash."""
    copy = tmp_path / "-ä model.ninfer"
    copy.write_bytes(all_formats.read_bytes())
    result = subprocess.run(
        [SCRIPT, "--json", "--", copy.name], cwd=tmp_path, capture_output=True, check=True
    )
    assert result.stderr == b""
    assert json.loads(result.stdout.decode())["path"] == copy.name


def test_help_is_fast() -> None:
    """300 ms on a quiet machine; processor time, because tests share theirs."""

    def children_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(3):
        begin = children_s()
        subprocess.run([SCRIPT, "--help"], capture_output=True, check=True)
        times.append(children_s() - begin)
    assert min(times) < 0.5
