"""The command ``ninfer-quant``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from ninfer_format import Artifact, TensorRecord, open_artifact
from ninfer_format.commandline import run as run_command
from ninfer_format.errors import ExitCode
from ninfer_quant import array_module
from ninfer_quant.calibration.records import CalibrationFile, InputStatistics, write_calibration
from ninfer_quant.cli.quant import command
from ninfer_quant.cli.schema import QUANT_SCHEMA
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.requantize import plan_requantization
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.one_format import SENSITIVE, OneFormat
from ninfer_runtime.device import Device
from ninfer_runtime.errors import DeviceError

CODE = "from ninfer_quant.cli.quant import main; main()"
MLP = "text/layers/*/mlp/*"
NAMES = ("calibrate", "compare", "fp8", "groupwise", "nvfp4", "plan", "sweep")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Run:
    """Run the command in a process of its own."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", CODE, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )

    return call


QuantCommand = Callable[..., tuple[int, str]]


@pytest.fixture
def quant_command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> QuantCommand:
    """Run the command in this process; its exit code and stderr."""
    monkeypatch.setattr(sys, "argv", ["ninfer-quant"])

    def call(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as caught:
            run_command(command, QUANT_SCHEMA, [str(argument) for argument in arguments])
        assert isinstance(caught.value.code, int)
        stderr = capfd.readouterr().err
        assert "Traceback" not in stderr
        return caught.value.code, stderr

    return call


@pytest.fixture(scope="module")
def calibration(direct: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up statistics of every input of the text model."""
    generator = np.random.default_rng(0)
    records = {}
    with open_artifact(direct) as artifact:
        for use in artifact.directory.uses:
            if use.input.startswith("text/") and use.input not in records:
                K = stored(artifact, use.parameter).shape[-1]
                root = generator.standard_normal((64, K)).astype(np.float32)
                hessian = root.T @ root / np.float32(64)
                records[use.input] = InputStatistics(
                    np.float32(np.abs(root).max()), hessian.diagonal().copy(), hessian
                )
    path = tmp_path_factory.mktemp("calibration") / "c.safetensors"
    write_calibration(path, records, {})
    return path


def stored(artifact: Artifact, name: str) -> TensorRecord:
    """Record of the object that a parameter lies in."""
    record = artifact.record(artifact.parts(name)[0].object)
    assert isinstance(record, TensorRecord)
    return record


def formats_of(artifact: Artifact) -> dict[str, str]:
    return {name: stored(artifact, name).format for name in artifact.directory.bindings}


def words_of(artifact: Artifact, name: str) -> bytes:
    (part,) = artifact.parts(name)
    return bytes(artifact.read_object(part.object))


# --- help ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_80_columns_and_shows_examples(name: str):
    result = CliRunner().invoke(command, [name, "--help"], prog_name="ninfer-quant")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert result.stdout.count(f"ninfer-quant {name} ") >= 2
    for parameter in command.commands[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[-1] in result.stdout


def test_help_needs_nothing_heavy():
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from ninfer_quant.cli.quant import command\n"
        f"for name in {NAMES!r}:\n"
        "    assert CliRunner().invoke(command, [name, '--help']).exit_code == 0\n"
        "assert not {'numpy', 'cupy', 'ninfer_runtime', 'tokenizers'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# --- from a checkpoint -------------------------------------------------------------------------


def test_without_a_choice_the_projections_that_fit_are_quantized(
    run: Run, checkpoint: Path, tmp_path: Path
):
    out = tmp_path / "out.ninfer"
    result = run("nvfp4", checkpoint, out, "--verify", "full", "--json", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["schema"], document["ok"]) == ("ninfer-quant/1", True)
    with open_artifact(out) as artifact:
        found = formats_of(artifact)
        policies = {use.activation_policy for use in artifact.directory.uses}
    assert policies == {"A16Only"}
    chosen = {name for name, format_ in found.items() if format_ == "nvfp4"}
    assert {name.rsplit("/", 1)[-1] for name in chosen} >= {"gate", "up", "down", "query", "output"}
    assert not {name for name in chosen if name.rsplit("/", 1)[-1] in SENSITIVE}
    assert Counter(found.values()).keys() == {"nvfp4", "bf16", "fp32"}
    report = json.loads((tmp_path / "out.ninfer.conversion.json").read_text())
    assert report["provenance"]["recipe"] == {"name": "ninfer-quant nvfp4"}


@pytest.mark.parametrize(
    ("arguments", "format_name", "method"),
    [
        (("groupwise", "--format", "q5_g64_fp16"), "q5_g64_fp16", "grouped_absmax"),
        (
            ("groupwise", "--format", "q4_g64_fp16", "--method", "mse"),
            "q4_g64_fp16",
            "grouped_mse",
        ),
        (
            ("groupwise", "--format", "q4_g64_fp16", "--method", "gptq", "--calibration", "C"),
            "q4_g64_fp16",
            "grouped_gptq",
        ),
        (("groupwise", "--format", "q4_g32_fp16_rows"), "q4_g32_fp16_rows", "q4_rows_maxabs"),
        (("fp8",), "fp8_e4m3fn_row_bf16", "fp8_row_maxabs"),
        (("nvfp4", "--method", "ratio"), "nvfp4", "nvfp4_ratio"),
        (("nvfp4", "--method", "four-over-six"), "nvfp4", "nvfp4_four_over_six"),
        (
            ("nvfp4", "--method", "mse", "--weighting", "diag", "--calibration", "C"),
            "nvfp4",
            "nvfp4_mse",
        ),
        (("nvfp4", "--method", "gptq", "--calibration", "C"), "nvfp4", "nvfp4_gptq"),
    ],
)
def test_each_method_by_its_options(
    checkpoint: Path,
    calibration: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    format_name: str,
    method: str,
):
    out = tmp_path / "out.ninfer"
    name, *options = (str(calibration) if item == "C" else item for item in arguments)
    line = [name, str(checkpoint), str(out), *options, "--select", "text/layers/3/mlp/down"]
    result = CliRunner().invoke(command, [*line, "-q", "--verify", "full", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.ninfer.conversion.json").read_text())
    (entry,) = (item for item in report["methods"] if item["method"] == method)
    assert (entry["parameters"], entry["format"]) == (["text/layers/3/mlp/down"], format_name)
    assert all(item["method"] == "cast_direct" for item in report["methods"] if item != entry)


def test_divisors_come_from_calibrated_maxima(checkpoint: Path, calibration: Path, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    line = ["nvfp4", str(checkpoint), str(out), "--activation-divisor", str(calibration)]
    result = CliRunner().invoke(command, [*line, "-q", "--select", MLP, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    known = CalibrationFile(calibration)
    with open_artifact(out) as artifact:
        for use in artifact.directory.uses:
            if "/mlp/" not in use.parameter:
                assert (use.activation_policy, use.auxiliaries) == ("A16Only", {})
                continue
            assert use.activation_policy == "AllowA4"
            binding = use.auxiliaries["activation_input_divisor"]
            assert binding.object is not None
            divisor = artifact.decode_object(binding.object)
            assert divisor == np.float32(2688) / known.amax(use.input)


# --- from an artifact --------------------------------------------------------------------------


def test_what_is_not_chosen_keeps_its_words_and_uses(quantized: Path, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    line = ["fp8", str(quantized), str(out), "--select", "text/token_embedding", "--select", MLP]
    result = CliRunner().invoke(command, [*line, "-q", "--verify", "full", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    with open_artifact(quantized) as before, open_artifact(out) as after:
        assert after.name == before.name
        assert after.directory.components.keys() == before.directory.components.keys()
        for name, component in before.directory.components.items():
            found = after.directory.components[name]
            assert (found.config, found.target) == (component.config, component.target)
            for role in component.resources:
                assert after.resource(name, role) == before.resource(name, role)
        assert after.directory.bindings.keys() == before.directory.bindings.keys()
        formats, old = formats_of(after), formats_of(before)
        for name, format_ in formats.items():
            is_chosen = name == "text/token_embedding" or (
                name.startswith("text/layers/") and "/mlp/" in name
            )
            if is_chosen:
                assert format_ == "fp8_e4m3fn_row_bf16"
            else:
                assert format_ == old[name]
                assert words_of(after, name) == words_of(before, name)
        assert {(use.parameter, use.input) for use in after.directory.uses} == {
            (use.parameter, use.input) for use in before.directory.uses
        }


def test_what_lay_together_lies_together_again(direct: Path, tmp_path: Path):
    out = tmp_path / "out.ninfer"
    choose = ["--select", "text/layers/0/mlp/*", "--select", "text/layers/0/gdn/query"]
    line = ["groupwise", str(direct), str(out), "--format", "q8_g32_fp16", *choose]
    assert CliRunner().invoke(command, [*line, "-q", "--device", "cpu"]).exit_code == 0
    with open_artifact(out) as artifact:
        objects = {name: artifact.parts(name)[0].object for name in artifact.directory.bindings}
    prefix = "text/layers/0/"
    assert objects[f"{prefix}mlp/gate"] == objects[f"{prefix}mlp/up"]
    assert objects[f"{prefix}gdn/key"] == objects[f"{prefix}gdn/value"]
    assert objects[f"{prefix}gdn/query"] != objects[f"{prefix}gdn/key"]


def test_an_artifact_may_be_quantized_in_several_steps(
    checkpoint: Path, calibration: Path, tmp_path: Path
):
    """The second step keeps the first one's divisors, stacked or not, and their words."""
    first, second = tmp_path / "1.ninfer", tmp_path / "2.ninfer"
    line = ["nvfp4", str(checkpoint), str(first), "--activation-divisor", str(calibration)]
    assert CliRunner().invoke(command, [*line, "-q", "--select", MLP]).exit_code == 0
    line = ["groupwise", str(first), str(second), "--format", "q6_g64_fp16"]
    attention = "text/layers/*/attention/*"
    assert CliRunner().invoke(command, [*line, "-q", "--select", attention]).exit_code == 0
    with open_artifact(first) as before, open_artifact(second) as after:
        old = {(use.parameter, use.input): use for use in before.directory.uses}
        for use in after.directory.uses:
            if "/mlp/" in use.parameter:
                assert words_of(after, use.parameter) == words_of(before, use.parameter)
                assert use.activation_policy == "AllowA4"
                found, expected = (
                    artifact.decode_object(
                        item.auxiliaries["activation_input_divisor"].object or ""
                    )
                    for artifact, item in (
                        (after, use),
                        (before, old[use.parameter, use.input]),
                    )
                )
                assert found == expected


# --- how the work is cut -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["nvfp4_mse", "nvfp4_gptq"])
def test_chunks_and_workers_change_no_byte(
    checkpoint: Path, calibration: Path, tmp_path: Path, method: str
):
    parameters = {"calibration": str(calibration)} if method == "nvfp4_gptq" else {}
    chosen = OneFormat("nvfp4", method, parameters, ("text/layers/[23]/mlp/*",))
    for index, (rows, jobs) in enumerate([(512, 1), (96, 3)]):
        request = ConversionRequest(
            checkpoint, chosen.as_recipe("test"), rows_per_chunk=rows, device="cpu"
        )
        options = RunOptions(tmp_path / str(index) / "a.ninfer", jobs=jobs, artifact_id=bytes(16))
        run_conversion(plan_conversion(request), options, lambda num_bytes, item: None)
    first, second = ((tmp_path / str(index) / "a.ninfer").read_bytes() for index in range(2))
    assert first == second


def test_an_artifact_without_a_change_keeps_every_object(quantized: Path, tmp_path: Path):
    chosen = OneFormat("bf16", "cast_direct", selectors=("text/final_norm",))
    out = tmp_path / "a.ninfer"
    conversion = plan_requantization(ConversionRequest(quantized, chosen.as_recipe("test")))
    run_conversion(conversion, RunOptions(out, verify="full"), lambda num_bytes, item: None)
    with open_artifact(quantized) as before, open_artifact(out) as after:
        assert len(after.directory.objects) == len(before.directory.objects)
        for name in before.directory.bindings:
            assert words_of(after, name) == words_of(before, name)


# --- custom methods ----------------------------------------------------------------------------


CUSTOM = '''
import numpy as np
from ninfer_format import Nvfp4Words
from ninfer_quant.methods.request import MethodJob


def ones(request):
    """Every value becomes 1."""

    def produce(output):
        N, K = request.target.matrix_shape
        for first, last in request.chunks():
            codes = np.full((last - first, K), 2, np.uint8)
            scales = np.full((last - first, K // 16), 0x38, np.uint8)
            output.write_rows(first, Nvfp4Words(codes, scales, np.array([0x3F800000], np.uint32)))
            output.keep_alive()

    return MethodJob(produce)


def configure(model, recipe, sources):
    recipe.assign("text/layers/3/mlp/down", format="nvfp4", method=ones)
'''


def test_a_recipe_file_may_bring_a_method_of_its_own(convert: Callable[..., Path], tmp_path: Path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(CUSTOM)
    out = convert(tmp_path / "a.ninfer", str(recipe), components=("text",), rows_per_chunk=100)
    with open_artifact(out) as artifact:
        assert (artifact.read_rows("text/layers/3/mlp/down", (0, 200)) == 1).all()


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nvfp4", "--method", "gptq"), ExitCode.USAGE, "--method gptq needs --calibration"),
        (("nvfp4", "--weighting", "diag"), ExitCode.USAGE, "is for --method mse, not absmax"),
        (
            ("nvfp4", "--method", "mse", "--weighting", "diag"),
            ExitCode.USAGE,
            "--weighting diag needs --calibration",
        ),
        (("nvfp4", "--calibration", "c"), ExitCode.USAGE, "--calibration is for --method gptq"),
        (
            ("groupwise", "--format", "q4_g64_fp16", "--method", "gptq"),
            ExitCode.USAGE,
            "need each other",
        ),
        (
            ("groupwise", "--format", "q4_g32_fp16_rows", "--method", "mse"),
            ExitCode.USAGE,
            "--method mse is not for --format q4_g32_fp16_rows",
        ),
        (("groupwise",), ExitCode.USAGE, "missing option '--format'"),
        (("fp8", "--select", "text/nothing/*"), ExitCode.INVALID_INPUT, "matches no parameter"),
        (("fp8", "--select", "text/*norm"), ExitCode.INVALID_INPUT, "matches no projection"),
        (
            ("nvfp4", "--select", "text/layers/0/gdn/a_projection"),
            ExitCode.INVALID_INPUT,
            "multiples of 128 rows and 64 columns",
        ),
        (
            ("nvfp4", "--method", "gptq", "--calibration", "nowhere.safetensors"),
            ExitCode.FAILED,
            "nowhere.safetensors: no such file",
        ),
    ],
)
def test_refusals_say_what_is_wrong(
    quant_command: QuantCommand,
    checkpoint: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: ExitCode,
    message: str,
):
    name, *options = arguments
    found, stderr = quant_command(name, checkpoint, tmp_path / "out.ninfer", *options)
    assert found == code, stderr
    (line,) = (line for line in stderr.splitlines() if line.startswith("error:"))
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_the_output_may_not_be_the_input(
    quant_command: QuantCommand, quantized: Path, tmp_path: Path
):
    link = tmp_path / "link.ninfer"
    link.symlink_to(quantized)
    code, stderr = quant_command("fp8", quantized, link, "--force")
    assert code == ExitCode.USAGE
    assert "output is the same file as input" in stderr


def test_workers_multiply_on_their_own_threads(
    quant_command: QuantCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    line = ("fp8", tmp_path / "absent", tmp_path / "out.ninfer")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    quant_command(*line)
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    quant_command(*line)
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"


def test_calibrate_takes_a_hub_id(
    quant_command: QuantCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, stderr = quant_command("calibrate", "org/absent", "--out", tmp_path / "c.safetensors")
    assert code == ExitCode.FAILED
    assert "org/absent is no path, and cannot be loaded from the Hub" in stderr


def test_a_gpu_that_is_asked_for_must_be_there(
    quant_command: QuantCommand,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def no_gpu(kind: str) -> Device:
        raise DeviceError(f"device {kind!r} is not available")

    array_module.array_module.cache_clear()
    monkeypatch.setattr(array_module, "get_device", no_gpu)
    line = ("nvfp4", checkpoint, tmp_path / "out.ninfer", "--select", MLP)
    code, stderr = quant_command(*line, "--device", "cuda")
    assert code == DeviceError("").exit_code
    assert "device 'cuda' is not available" in stderr
    assert array_module.default_device() == "cpu"
    array_module.array_module.cache_clear()


# --- calibrate ---------------------------------------------------------------------------------


def test_calibrate_writes_a_file_and_says_so(
    run: Run, quant_command: QuantCommand, checkpoint: Path, tmp_path: Path
):
    out = tmp_path / "c.safetensors"
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("A short walk along the river. " * 20, encoding="utf-8")
    line = ["calibrate", checkpoint, "--corpus", corpus, "--rows", 2, "--cols", 24, "--out", out]
    result = run(*line, "--no-hessians", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["rows"], document["tokens"]) == ("2", "48")
    assert len(CalibrationFile(out).inputs) == 33
    code, stderr = quant_command(*line)
    assert (code, "exists already" in stderr) == (ExitCode.USAGE, True)
    code, stderr = quant_command(*line[:-1], tmp_path / "d.safetensors", "--cols", 10**6)
    assert (code, "the model was made for" in stderr) == (ExitCode.USAGE, True)


def test_an_interrupted_calibration_keeps_its_work_and_goes_on(
    run: Run, checkpoint: Path, tmp_path: Path
):
    out, whole = tmp_path / "c.safetensors", tmp_path / "whole.safetensors"
    work = tmp_path / "c.safetensors.work"
    # Enough rows that the command is still at work when it is interrupted.
    line = ["calibrate", checkpoint, "--rows", 24, "--cols", 128, "--out"]
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, line), str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (work / "layer-0001.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, stderr
    assert "Traceback" not in stderr
    assert not out.exists()
    names = {path.name for path in work.iterdir()}
    assert {"settings.json", "layer-0000.safetensors", "layer-0001.safetensors"} <= names
    assert not any(name.endswith(".tmp") for name in names)
    assert run(*line, out).returncode == 0
    assert not work.exists()
    assert run(*line, whole, "-q").returncode == 0
    assert out.read_bytes() == whole.read_bytes()
