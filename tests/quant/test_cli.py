"""The command ``ninfer-convert``, in processes of its own."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from ninfer_format import open_artifact
from ninfer_format.errors import ExitCode
from ninfer_quant.array_module import Device
from ninfer_quant.cli.build import default_jobs
from ninfer_quant.cli.device import choose_rows_per_chunk
from ninfer_quant.recipes.loading import OFFICIAL

Run = Callable[..., "subprocess.CompletedProcess[str]"]

CODE = "from ninfer_quant.cli.convert import main; main()"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the command in an empty folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()

    def call(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", CODE, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def error_lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("error:")]


# --- build ---------------------------------------------------------------------------------


def test_the_bare_form_is_build(run: Run, checkpoint: Path, quantized: Path, tmp_path: Path):
    options = ["--model", checkpoint, "--recipe", "qwen3_8_27b", "--components", "text,vision,mtp"]
    options += ["--artifact-id", bytes(range(16)).hex()]
    bare = run(*options, "--out", tmp_path / "bare.ninfer")
    named = run("build", *options, "--out", tmp_path / "named.ninfer", "--jobs", "2")
    assert (bare.returncode, named.returncode) == (0, 0), bare.stderr + named.stderr
    assert bare.stdout == named.stdout == ""
    assert (tmp_path / "bare.ninfer").read_bytes() == quantized.read_bytes()
    assert (tmp_path / "named.ninfer").read_bytes() == quantized.read_bytes()
    first, *_, last = bare.stderr.splitlines()
    assert first.startswith("converting: 0 %")
    assert "converting: 100 %" in bare.stderr
    assert last.startswith(f"wrote {tmp_path / 'bare.ninfer'}: ")
    assert "\x1b" not in bare.stderr
    assert "\r" not in bare.stderr


def test_json_is_one_document_and_progress_reaches_its_total(
    run: Run, checkpoint: Path, tmp_path: Path
):
    output = tmp_path / "mit Leerzeichen ü.ninfer"
    result = run("--model", checkpoint, "--recipe", "qwen3_8_27b", "--out", output, "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert list(document)[:2] == ["schema", "ok"]
    assert (document["schema"], document["ok"]) == ("ninfer-convert/1", True)
    assert document["output"] == str(output)
    assert document["files"][0]["path"] == output.name
    assert document["payload_bytes"] == sum(item["payload_bytes"] for item in document["files"])
    counts = [line for line in result.stderr.splitlines() if line.startswith("converting: 100 %")]
    done, total = counts[-1].split("(")[1].rstrip(")").split(" of ")
    assert done == total


def test_names_come_from_the_option_the_configuration_or_the_folder(
    run: Run, checkpoint_copy: Path, tmp_path: Path
):
    def name(*options: str) -> str | None:
        output = tmp_path / "x.ninfer"
        common = ["--model", checkpoint_copy, "--recipe", "qwen3_8_27b_bf16", "--out", output]
        result = run(*common, "--force", "--verify", "none", *options)
        assert result.returncode == 0, result.stderr
        with open_artifact(output) as artifact:
            return artifact.name

    assert name() == "checkpoint"
    config = json.loads((checkpoint_copy / "config.json").read_text("utf-8"))
    config["_name_or_path"] = "/home/somebody/models/Tiny-1/"
    (checkpoint_copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert name() == "Tiny-1"
    assert name("--name", "mine") == "mine"


def test_a_plan_is_printed_and_nothing_written(
    run: Run, checkpoint: Path, quantized: Path, tmp_path: Path
):
    options = ["--model", checkpoint, "--recipe", "qwen3_8_27b", "--components", "text,vision,mtp"]
    before = sorted(tmp_path.rglob("*"))
    text = run(*options, "--plan")
    document = json.loads(run(*options, "--plan", "--json").stdout)
    assert sorted(tmp_path.rglob("*")) == before
    with open_artifact(quantized) as artifact:
        assert document["payload_bytes"] == artifact.payload_bytes
        assert document["objects"] == len(artifact.directory.objects)
        assert {row["parameter"] for row in document["assignments"]} == set(
            artifact.directory.bindings
        )
    header, *rows, total = text.stdout.splitlines()
    assert header.split() == [
        "parameter",
        "shape",
        "source",
        "format",
        "layout",
        "method",
        "object",
        "bytes",
    ]
    assert len(rows) == len(document["assignments"])
    assert len({len(line) for line in (header, *rows)}) == 1
    assert str(document["payload_bytes"]) in total
    row = next(row for row in document["assignments"] if row["parameter"].endswith("3/mlp/gate"))
    assert row == {
        "parameter": "text/layers/3/mlp/gate",
        "shape": [768, 256],
        "source": "model.language_model.layers.3.mlp.gate_proj.weight",
        "format": "q4_g64_fp16",
        "layout": "row_split_k128_v1",
        "method": "grouped_absmax",
        "object": row["object"],
        "bytes": 768 * 256 * 4.25 / 8,
    }


BAD_USE = {
    "an unknown component": (["--components", "text,audio"], 2, "unknown component 'audio'"),
    "a component twice": (["--components", "text,text"], 2, "twice"),
    "no text component": (["--components", "vision"], 2, "lacks text"),
    "no output": ([], 2, "--out is missing"),
    "an id that is too short": (["--out", "x", "--artifact-id", "00"], 2, "32 hex"),
    "an id that is no hex": (["--out", "x", "--artifact-id", "z" * 32], 2, "32 hex"),
    "an id with spaces": (["--out", "x", "--artifact-id", "00 " * 10 + "00"], 2, "32 hex"),
    "a resource without a path": (["--out", "x", "--resource", "tokenizer.json"], 2, "ROLE=PATH"),
    "a resource of no role": (["--out", "x", "--resource", "a.json=b"], 2, "no role"),
    "no chunk": (["--out", "x", "--rows-per-chunk", "0"], 2, "rows-per-chunk"),
    "no job": (["--out", "x", "--jobs", "0"], 2, "jobs"),
    "a limit that is no size": (["--out", "x", "--max-file-bytes", "3GB"], 2, "size"),
    "a limit that is too small": (
        ["--out", "x", "--max-file-bytes", "4KiB"],
        2,
        "--max-file-bytes 4096",
    ),
    "an output that is a folder": (["--out", "."], 2, "--out '.' names no file"),
    "an output without a name": (["--out", ""], 2, "names no file"),
    "an output above": (["--out", ".."], 2, "names no file"),
    "an empty name": (["--out", "x", "--name", ""], 2, "--name"),
    "an override that is no file": (["--out", "x", "--override", "no.py"], 2, "no.py"),
}


@pytest.mark.parametrize("case", BAD_USE)
def test_wrong_use_is_one_line_and_an_exit_code(run: Run, checkpoint: Path, case: str):
    arguments, code, message = BAD_USE[case]
    result = run("--model", checkpoint, "--recipe", "qwen3_8_27b", *arguments)
    (line,) = error_lines(result)
    assert message in line
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert result.returncode == code


def test_a_wrong_recipe_name_suggests_the_nearest(run: Run, checkpoint: Path):
    result = run("--model", checkpoint, "--recipe", "qwen3_8_27b_q5", "--out", "x", "--json")
    assert result.returncode == ExitCode.USAGE
    assert "did you mean qwen3_8_27b" in error_lines(result)[0]
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["error"]["code"] == "usage"
    assert document["error"]["hint"].startswith("did you mean")


def test_missing_tensors_are_one_line_and_exit_3(run: Run, tmp_path: Path, checkpoint: Path):
    folder = tmp_path / "config only"
    folder.mkdir()
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    result = run("--model", folder, "--recipe", "qwen3_8_27b", "--out", "x.ninfer", "--json")
    assert result.returncode == ExitCode.INVALID_INPUT
    (line,) = error_lines(result)
    assert "lm_head.weight" in line
    assert json.loads(result.stdout)["error"]["path"] == str(folder)


@pytest.mark.parametrize("option", ["--model", "--recipe", "--override", "--name", "--out"])
def test_names_that_are_not_text_are_refused(
    run: Run, checkpoint: Path, tmp_path: Path, option: str
):
    name = os.fsdecode(b"\xff.py")
    shutil.copytree(checkpoint, tmp_path / "cwd" / name)
    options = {"--model": checkpoint, "--recipe": "qwen3_8_27b", "--out": "x.ninfer", option: name}
    result = run(*(item for pair in options.items() for item in pair), "--json")
    assert result.returncode == ExitCode.USAGE, result.stderr
    assert error_lines(result) == [f"error: {option}: '\\udcff.py' is not UTF-8 (hint: rename it)"]
    assert json.loads(result.stdout)["error"]["code"] == "usage"
    assert os.listdir(tmp_path / "cwd") == [name]


def test_a_default_run_has_at_most_eight_jobs(monkeypatch: pytest.MonkeyPatch):
    for processors, jobs in ((1, 1), (2, 1), (12, 6), (32, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=processors: set(range(n)))
        assert default_jobs() == jobs


def test_an_existing_output_is_a_usage_error(run: Run, checkpoint: Path, tmp_path: Path):
    output = tmp_path / "there.ninfer"
    output.write_text("precious", encoding="utf-8")
    result = run("--model", checkpoint, "--recipe", "qwen3_8_27b", "--out", output)
    assert result.returncode == ExitCode.USAGE
    assert "converting" not in result.stderr
    assert "--force" in error_lines(result)[0]
    assert output.read_text("utf-8") == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only_is_an_error_of_the_system(
    run: Run, checkpoint: Path, tmp_path: Path
):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    result = run("--model", checkpoint, "--recipe", "qwen3_8_27b", "--out", folder / "x.ninfer")
    assert result.returncode == ExitCode.FAILED
    assert "permission denied" in error_lines(result)[0]


def test_quiet_prints_nothing_and_verbose_says_what_was_rewritten(
    run: Run, checkpoint: Path, tmp_path: Path
):
    options = ["--model", checkpoint, "--recipe", "qwen3_8_27b"]
    quiet = run(*options, "--out", tmp_path / "q.ninfer", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    loud = run(*options, "--out", tmp_path / "v.ninfer", "-v", "--no-progress")
    assert "tokenizer.json: replaced the split pattern" in loud.stderr
    assert "converting" not in loud.stderr


# --- the other commands ----------------------------------------------------------------------


def test_recipes_are_listed(run: Run):
    assert [line.split()[0] for line in run("recipes").stdout.splitlines()] == list(OFFICIAL)
    document = json.loads(run("recipes", "--json").stdout)
    assert [entry["name"] for entry in document["recipes"]] == list(OFFICIAL)
    sources = {entry["name"]: entry["sources"] for entry in document["recipes"]}
    assert sources["qwen3_8_27b"] == ["base"]
    assert sources["qwen3_8_27b_nvfp4"] == ["base", "quantized"]


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_sources_are_listed(run: Run, checkpoint: Path, name: str):
    document = json.loads(run("sources", checkpoint / name, "--json").stdout)
    assert len(document["tensors"]) == 181
    assert document["total_bytes"] == sum(tensor["bytes"] for tensor in document["tensors"])
    tensors = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert tensors["mtp.fc.weight"] == {
        "name": "mtp.fc.weight",
        "dtype": "BF16",
        "shape": [256, 512],
        "bytes": 256 * 512 * 2,
        "file": "model.safetensors",
    }
    text = run("sources", checkpoint / name).stdout.splitlines()
    assert len(text) == 182
    assert text[-1].startswith("181 tensors, ")


def test_sources_of_a_gguf_file_are_listed(run: Run, tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen35")
    values = np.ones((3, 64), np.float32)
    quantized = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("w", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    document = json.loads(run("sources", tmp_path / "m.gguf", "--json").stdout)
    assert document["tensors"] == [
        {"name": "w", "dtype": "Q8_0", "shape": [3, 64], "bytes": 204, "file": "m.gguf"}
    ]


def test_sources_of_a_file_that_is_none(run: Run, tmp_path: Path):
    (tmp_path / "x.safetensors").write_bytes(b"no safetensors")
    result = run("sources", tmp_path / "x.safetensors")
    assert result.returncode == ExitCode.INVALID_INPUT
    assert run("sources", tmp_path / "none.safetensors").returncode == ExitCode.FAILED


def test_a_resource_is_extracted_byte_for_byte(run: Run, quantized: Path, tmp_path: Path):
    output = tmp_path / "template.jinja"
    result = run("extract", quantized, "--resource", "chat_template.jinja", "-o", output)
    assert (result.returncode, result.stdout) == (0, "")
    with open_artifact(quantized) as artifact:
        assert output.read_bytes() == artifact.resource("text", "chat_template.jinja")
        vision = artifact.resource("vision", "video_preprocessor_config.json")
    printed = run("extract", quantized, "--resource", "video_preprocessor_config.json")
    assert printed.stdout.encode() == vision
    again = run("extract", quantized, "--resource", "chat_template.jinja", "-o", output)
    assert again.returncode == ExitCode.USAGE
    assert "--force" not in again.stderr
    printed = run("extract", quantized, "--resource", "vision/video_preprocessor_config.json")
    assert printed.stdout.encode() == vision


def test_a_role_that_is_not_there_is_named(run: Run, quantized: Path):
    result = run("extract", quantized, "--resource", "chat_template.json")
    assert result.returncode == ExitCode.INVALID_INPUT
    assert "did you mean chat_template.jinja?" in error_lines(result)[0]
    result = run("extract", quantized, "--resource", "tokenizer.json", "--json")
    assert result.returncode == ExitCode.USAGE


# --- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], ["build"], ["recipes"], ["sources"], ["extract"]])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_fits_80_columns(run: Run, command: list[str], option: str):
    result = run(*command, option, COLUMNS="80")
    assert result.returncode == 0
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Examples:" in result.stdout


def test_help_names_every_option_and_its_default(run: Run):
    text = run("build", "--help").stdout
    for option in ("--model", "--recipe", "--override", "--components", "--resource", "--name"):
        assert option in text
    for option in ("--out", "--force", "--rows-per-chunk", "--max-file-bytes", "--jobs", "--plan"):
        assert option in text
    for default in ("text", "512", "32000000000", "sample"):
        assert f"[default: {default}" in " ".join(text.split())


def test_help_needs_nothing_heavy():
    probe = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from ninfer_quant.cli.convert import command\n"
        "assert CliRunner().invoke(command, ['build', '--help']).exit_code == 0\n"
        "heavy = {'numpy', 'tokenizers', 'jinja2', 'ninfer_runtime.models', 'pydantic'}\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""


def test_help_is_fast(run: Run):
    """300 ms on a quiet machine; processor time, because tests share theirs."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


def test_version(run: Run):
    result = run("--version")
    assert result.returncode == 0
    assert "container version 3" in result.stdout


def test_nothing_at_all_is_a_usage_error(run: Run):
    result = run()
    assert result.returncode == ExitCode.USAGE
    assert error_lines(result)[0].startswith("error: missing option '--model'")


def test_an_unknown_command_is_a_usage_error(run: Run):
    result = run("biuld", "--model", "x")
    assert result.returncode == ExitCode.USAGE
    assert "biuld" in error_lines(result)[0]


def test_the_installed_script_is_this_command():
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="ninfer-convert")
    assert script.value == "ninfer_quant.cli.convert:main"


def test_stdout_that_is_closed_ends_quietly(checkpoint: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "sources", str(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == ExitCode.FAILED
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize(
    ("given", "device", "rows"), [(None, "cpu", 512), (None, "cuda", 4096), (7, "cuda", 7)]
)
def test_rows_of_a_chunk_depend_on_the_device(given: int | None, device: Device, rows: int):
    assert choose_rows_per_chunk(given, device) == rows
