from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ninfer_format.errors import ExitCode
from ninfer_runtime import environment
from ninfer_runtime.cli import bench
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.engine.executor import Choice, Executor
from ninfer_runtime.errors import DeviceError
from ninfer_runtime.ops import kernels

PACK = Kernel("ops/linear/activations.cu", "ninfer::pack_activations_kernel<false>")


@pytest.fixture
def run(invoke, monkeypatch, tmp_path):
    """Call the command, which then knows of one kernel only."""
    monkeypatch.setattr(kernels, "ops_with_kernels", lambda: ["linear"])
    monkeypatch.setattr(kernels, "every_kernel", lambda op, target: {PACK})
    monkeypatch.setattr("ninfer_runtime.bench.kernels.OTHER_KERNELS", frozenset())
    monkeypatch.setattr(environment, "kernel_cache_dir", lambda: tmp_path)

    def run(*arguments):
        return invoke(bench.command, bench.SCHEMA, *arguments)

    return run


def test_kernels_are_compiled_for_the_architectures_that_are_named(run, tmp_path):
    result = run("--compile-only", "--arch", "sm_80", "--arch", "sm_90a")
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith("sm_")]
    assert [line.split()[:2] for line in lines] == [["sm_80", "1"], ["sm_90a", "1"]]
    assert len(list(tmp_path.iterdir())) == 2


def test_kernels_that_cannot_be_kept_are_compiled_with_a_warning(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(environment, "kernel_cache_dir", lambda: tmp_path / "file" / "kernels")
    result = run("--compile-only", "--arch", "sm_80")
    assert result.code == 0
    assert f"warning: {tmp_path}/file/kernels: Not a directory: what is compiled" in result.err


def test_json_lists_the_resources_of_every_kernel(run):
    result = run("--compile-only", "--arch", "sm_90a", "--json", "--no-progress")
    (kernel,) = json.loads(result.out)["kernels"]
    assert (kernel["instance"], kernel["architecture"]) == (PACK.instance, "sm_90a")
    assert kernel["registers"] > 0
    assert kernel["spill_bytes"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ops", "linear", "--compile-only"), "--ops and --compile-only exclude each other"),
        (("--ops", "linear", "--arch", "sm_80"), "--arch goes with --compile-only"),
        (("--compile-only", "--arch", "sm_75"), "--arch sm_75 is not one of sm_80"),
        (("--compile-only", "-r", "2"), "--repetitions means nothing with --compile-only"),
        (("--compile-only", "--device", "0"), "--device means nothing with --compile-only"),
        (("--compile-only", "-p", "5"), "--n-prompt means nothing with --compile-only"),
        (("--ops", "linear", "-n", "5"), "--n-gen means nothing with --ops"),
        (("--ops", "linear", "model.ninfer"), "MODEL means nothing with --ops"),
        (("--synthetic", "qwen3.6-27b"), "--synthetic and --recipe go together"),
        (("--recipe", "qwen3_6_27b"), "--synthetic and --recipe go together"),
        (
            ("m.ninfer", "--synthetic", "qwen3.6-27b", "--recipe", "qwen3_6_27b"),
            "--synthetic and MODEL exclude each other",
        ),
        (("--fail-below", "0.9"), "--fail-below needs --compare"),
        (("--json", "-o", "csv"), "--json and --output csv exclude each other"),
        (("--force",), "--force needs --output-file"),
        (("--compile-only", "-o", "csv"), "--output means nothing with --compile-only"),
        (("--ops", "linear", "--corpus", __file__), "--corpus means nothing with --ops"),
        (("-p", "512,0"), "0 is not in the range x>=1"),
        (("--concurrency", "9"), "9 is not in the range 1<=x<=8"),
        (("-pg", "512"), "'512' is no pair such as 512,128"),
        (("-p", "40000"), "the tests need 40000 tokens, the model was made for 32768"),
        (("-p", "8", "--profile"), "--profile needs a GPU"),
    ],
)
def test_wrong_options_are_refused(run, arguments, message):
    result = run("--backend", "cpu", *arguments) if is_of_a_model(arguments) else run(*arguments)
    assert message in result.err
    assert result.code == ExitCode.USAGE


def is_of_a_model(arguments):
    return not {"--ops", "--compile-only"} & set(arguments)


def test_a_model_is_measured(run, tmp_path):
    arguments = ("--backend", "cpu", "-r", "2", "--warmup", "0", "--no-progress")
    tests = ("-p", "20", "-n", "3", "-pg", "5,2", "-d", "0,70", "--concurrency", "1,2")
    result = run(*arguments, *tests, "--prefill-chunk", "16", "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert [row["test"] for row in document["tests"]] == [
        *("pp20", "pp20@70"),
        *("tg3", "tg3 x2", "tg3@70", "tg3@70 x2"),
        *("pp5+tg2", "pp5+tg2 x2", "pp5+tg2@70", "pp5+tg2@70 x2"),
    ]
    for row in document["tests"]:
        assert len(row["tok_s_of_runs"]) == 2
        assert min(row["tok_s_of_runs"]) <= row["tok_s"] <= max(row["tok_s_of_runs"])
        assert row["tok_s"] > 0
    together = document["tests"][5]
    # The context of two repetitions of three tokens in the middle.
    assert together["mean_context"] == 73
    assert together["ms_per_step"] == pytest.approx(2000 / together["tok_s"])
    assert document["model"]["kv_dtype"] == "fp32"
    assert document["environment"]["revision"]
    assert document["repetitions"] == 2


@pytest.mark.parametrize("arguments", [("-p", "4"), ("-n", "3"), ("-pg", "4,2")])
@pytest.mark.parametrize("step", [0, 1])
def test_a_model_that_computes_no_numbers_has_no_speed(run, monkeypatch, arguments, step):
    tokens = iter([5] * step + [-1] * 9)
    monkeypatch.setattr(Choice, "wait", lambda choice: np.array([next(tokens)]))
    result = run("--backend", "cpu", *arguments, "-r", "2", "--warmup", "0", "--no-progress")
    assert "the model computed a logit that is not finite" in result.err
    assert result.code == ExitCode.FAILED
    assert result.out == ""


def test_figures_are_compared_with_earlier_ones(run, tmp_path):
    arguments = ("--backend", "cpu", "-n", "2", "-r", "1", "--no-progress")
    first = json.loads(run(*arguments, "--json").out)
    for speed, code in ((1e-3, 0), (1e9, ExitCode.FAILED)):
        (row,) = first["tests"]
        row["tok_s"] = speed
        path = tmp_path / "before.json"
        path.write_text(json.dumps(first))
        result = run(*arguments, "--compare", str(path), "--fail-below", "0.5")
        assert result.code == code
        assert " of before" in result.out
    result = run("--backend", "cpu", "-n", "3", "-r", "1", "--compare", str(path))
    assert "nothing in it was measured now" in result.err
    path.write_text("{}")
    result = run(*arguments, "--compare", str(path))
    assert "is no document of ninfer-bench/1" in result.err
    assert result.code == ExitCode.USAGE


def test_the_result_is_written_in_the_form_that_is_asked_for(run):
    arguments = ("--backend", "cpu", "-p", "4,5", "-r", "1", "--warmup", "0", "--no-progress")
    document = json.loads(run(*arguments, "-o", "json").out)
    assert (document["schema"], document["ok"]) == (bench.SCHEMA, True)
    names = [name for name in document["tests"][0] if name != "tok_s_of_runs"]
    first, *rows = csv.reader(io.StringIO(run(*arguments, "-o", "csv").out))
    assert first == names
    assert [row[:2] for row in rows] == [["pp4", "4"], ["pp5", "5"]]
    lines = run(*arguments, "-o", "md").out.splitlines()
    assert lines[:2] == [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    assert [line.split()[:4] for line in lines[2:]] == [
        ["|", "pp4", "|", "4"],
        ["|", "pp5", "|", "5"],
    ]


def test_the_result_goes_to_a_file(run, tmp_path):
    path = tmp_path / "result.json"
    arguments = ("--backend", "cpu", "-n", "1", "-r", "1", "--no-progress")
    to_file = ("-o", "json", "--output-file", str(path))
    result = run(*arguments, *to_file)
    assert (result.code, result.out) == (0, "")
    assert json.loads(path.read_bytes())["tests"][0]["test"] == "tg1"
    again = run(*arguments, *to_file)
    assert again.code == ExitCode.USAGE
    assert "output exists already" in again.err
    assert run(*arguments, *to_file, "--force").code == 0
    compared = run(*arguments, *to_file, "--force", "--compare", str(path))
    assert "output is the same file as input" in compared.err


def test_prompts_are_cut_from_a_corpus(run, tmp_path, monkeypatch):
    executed = []
    prefill = Executor.prefill

    def noted(self, lane, token_ids):
        executed.append(token_ids.tolist())
        return prefill(self, lane, token_ids)

    monkeypatch.setattr(Executor, "prefill", noted)
    corpus = tmp_path / "corpus.json"
    corpus.write_text("[1, 2, 3, 4, 5]")
    arguments = ("--backend", "cpu", "-p", "3", "-r", "2", "--warmup", "0", "--no-progress")
    assert run(*arguments, "--corpus", str(corpus)).code == 0
    assert executed == [[1, 2, 3], [4, 5, 1]]
    corpus.write_text("[]")
    assert "has no token ids" in run(*arguments, "--corpus", str(corpus)).err
    corpus.write_text("[1, -1]")
    assert "position 1: expected a token id in 0.." in run(*arguments, "--corpus", str(corpus)).err


def test_without_tests_a_prompt_and_decoding_are_measured(run):
    result = run("--backend", "cpu", "-r", "1", "--warmup", "0")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[2:]] == ["pp512", "tg128"]


def test_ops_need_a_gpu(run, monkeypatch):
    def absent():
        raise DeviceError("the NVIDIA driver is not installed")

    monkeypatch.setattr("ninfer_runtime.cuda.properties.driver", absent)
    result = run("--ops", "linear")
    assert "the NVIDIA driver is not installed" in result.err
    assert result.code == ExitCode.UNAVAILABLE


def compilers(pid):
    """Processes that the process `pid` has started to compile."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for file in threads for child in file.read_text().split()]
    return [
        child
        for child in children
        if b"compile_worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_an_interrupt_of_all_processes_is_answered_by_the_command_alone(tmp_path):
    program = shutil.which("ninfer-bench", path=str(Path(sys.executable).parent))
    assert program is not None
    with subprocess.Popen(
        [program, "--compile-only", "--arch", "sm_80"],
        env=os.environ | {"NINFER_CACHE_DIR": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not compilers(process.pid):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.15)  # in the middle of their imports, where an interrupt shows
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED
    assert err.endswith("error: interrupted\n")
    assert "Traceback" not in err
