"""What must be refused, and that nothing remains of a conversion that fails."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import ArtifactWriter, SafetensorsCheckpoint, open_artifact
from ninfer_format.errors import CheckpointError, ExitCode, UnsupportedConfigError, UsageError
from ninfer_format.verification.conversion_report import report_path
from ninfer_quant.errors import ConversionError, DiskSpaceError
from ninfer_quant.pipeline import staging
from ninfer_quant.pipeline.staging import publish, staging_folder

Convert = Callable[..., Path]
WriteSafetensors = Callable[[Path, Mapping[str, np.ndarray]], None]
Change = Callable[[dict[str, np.ndarray]], None]


@pytest.fixture
def change_weights(
    checkpoint_copy: Path, write_safetensors: WriteSafetensors
) -> Callable[[Change], Path]:
    """Rewrite the copied checkpoint's weights; returns its folder."""

    def apply(change: Change) -> Path:
        weights = checkpoint_copy / "model.safetensors"
        source = SafetensorsCheckpoint(weights)
        tensors = {
            name: source.read(name).reshape(source.info(name).shape) for name in source.names
        }
        change(tensors)
        write_safetensors(weights, tensors)
        return checkpoint_copy

    return apply


def remaining(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "checkpoint")


# --- the checkpoint ------------------------------------------------------------------------


def test_all_missing_tensors_are_listed(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path
):
    missing = (
        "lm_head.weight",
        "model.language_model.layers.3.self_attn.q_proj.weight",
        "model.visual.blocks.2.attn.qkv.bias",
        "mtp.fc.weight",
    )

    def remove(tensors: dict[str, np.ndarray]) -> None:
        for name in missing:
            del tensors[name]

    with pytest.raises(CheckpointError) as caught:
        convert(tmp_path / "tiny.ninfer", model=change_weights(remove))
    assert set(caught.value.tensors) == set(missing)
    assert all(name in str(caught.value) for name in missing)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    assert remaining(tmp_path) == []


def test_all_wrong_shapes_are_listed(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path
):
    def reshape(tensors: dict[str, np.ndarray]) -> None:
        for name in ("lm_head.weight", "mtp.norm.weight"):
            tensors[name] = tensors[name].reshape(-1, 2)

    with pytest.raises(CheckpointError, match=r"lm_head.weight \[524288, 2\], expected") as caught:
        convert(tmp_path / "tiny.ninfer", model=change_weights(reshape))
    assert set(caught.value.tensors) == {"lm_head.weight", "mtp.norm.weight"}


@pytest.mark.parametrize(
    ("tensor", "index", "parameter", "place", "value"),
    [
        (
            "model.language_model.layers.3.self_attn.q_proj.weight",
            (256 + 5, 7),
            "text/layers/3/attention/gate",
            "[5, 7]",
            np.nan,
        ),
        (
            "model.language_model.layers.3.self_attn.q_proj.weight",
            (512 + 3, 9),
            "text/layers/3/attention/query",
            "[259, 9]",
            np.inf,
        ),
        (
            "model.language_model.layers.0.linear_attn.conv1d.weight",
            (1000, 0, 2),
            "text/layers/0/gdn/convolution",
            "[2, 1000]",
            -np.inf,
        ),
        (
            "model.language_model.embed_tokens.weight",
            (4000, 200),
            "embedding",
            "[4000, 200]",
            np.nan,
        ),
        ("model.language_model.norm.weight", (17,), "text/final_norm", "[17]", np.nan),
    ],
)
def test_a_value_that_is_not_finite_is_located(
    convert: Convert,
    change_weights: Callable[[Change], Path],
    tmp_path: Path,
    tensor: str,
    index: tuple[int, ...],
    parameter: str,
    place: str,
    value: float,
):
    def poison(tensors: dict[str, np.ndarray]) -> None:
        tensors[tensor] = tensors[tensor].copy()
        tensors[tensor][index] = ml_dtypes.bfloat16(value)

    with pytest.raises(ConversionError) as caught:
        convert(tmp_path / "tiny.ninfer", model=change_weights(poison), components=("text",))
    message = str(caught.value)
    assert tensor in message
    assert parameter in message
    assert f"{value} at index {place}" in message
    assert remaining(tmp_path) == []


def test_a_weight_beyond_the_range_of_its_format_is_refused(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path
):
    def enlarge(tensors: dict[str, np.ndarray]) -> None:
        values = tensors["model.language_model.layers.0.mlp.up_proj.weight"].copy()
        values[0, 0] = 1e6
        tensors["model.language_model.layers.0.mlp.up_proj.weight"] = values

    with pytest.raises(ConversionError, match="text/layers/0/mlp/gate") as caught:
        convert(tmp_path / "tiny.ninfer", model=change_weights(enlarge))
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    assert remaining(tmp_path) == []


def test_a_truncated_file_is_refused(convert: Convert, checkpoint_copy: Path, tmp_path: Path):
    weights = checkpoint_copy / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    with pytest.raises(CheckpointError, match="file ends inside tensor"):
        convert(tmp_path / "tiny.ninfer", model=checkpoint_copy)
    assert remaining(tmp_path) == []


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    convert: Convert, checkpoint_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = SafetensorsCheckpoint.read

    def read(self: SafetensorsCheckpoint, *arguments: Any) -> Any:
        os.truncate(checkpoint_copy / "model.safetensors", 10_000_000)
        return original(self, *arguments)

    monkeypatch.setattr(SafetensorsCheckpoint, "read", read)
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        convert(tmp_path / "tiny.ninfer", model=checkpoint_copy)
    assert remaining(tmp_path) == []


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (None, CheckpointError, r"no config\.json"),
        ({"architectures": ["LlamaForCausalLM"]}, UnsupportedConfigError, "LlamaForCausalLM"),
        ({"architectures": []}, UnsupportedConfigError, "architectures"),
        ({"x": 1}, UnsupportedConfigError, "architectures"),
    ],
)
def test_an_unknown_architecture_is_refused(
    convert: Convert,
    checkpoint_copy: Path,
    tmp_path: Path,
    config: dict[str, Any] | None,
    error: type[Exception],
    message: str,
):
    path = checkpoint_copy / "config.json"
    path.unlink()
    if config is not None:
        path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(error, match=message):
        convert(tmp_path / "tiny.ninfer", model=checkpoint_copy)


def test_a_path_that_is_no_folder_is_refused(convert: Convert, checkpoint: Path, tmp_path: Path):
    for path in (checkpoint / "model.safetensors", tmp_path / "none"):
        with pytest.raises(CheckpointError, match="not a folder"):
            convert(tmp_path / "tiny.ninfer", model=path)


def test_a_quantized_checkpoint_is_refused(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path
):
    quantized: list[str] = []

    def quantize(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            tensors[name] = tensors[name].astype(np.float32).astype(np.int8)
            tensors[f"{name}_scale"] = np.ones(1, np.float32)
            quantized.extend((name, f"{name}_scale"))

    with pytest.raises(CheckpointError, match="int8") as caught:
        convert(tmp_path / "tiny.ninfer", model=change_weights(quantize))
    assert set(caught.value.tensors) == set(quantized)
    assert all(name in str(caught.value) for name in quantized)
    assert remaining(tmp_path) == []


@pytest.mark.parametrize(
    "suffix",
    ["weight_scale", "input_scale", "weight_scale_inv", "weight_scale_2", "weight_zero_point"],
)
def test_scales_that_nothing_reads_are_refused(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path, suffix: str
):
    name = f"model.language_model.layers.3.self_attn.o_proj.{suffix}"

    def add(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = np.ones(1, np.float32)

    with pytest.raises(CheckpointError) as caught:
        convert(tmp_path / "tiny.ninfer", model=change_weights(add))
    assert caught.value.tensors == (name,)


O_PROJ = "model.language_model.layers.3.self_attn.o_proj.weight"


def to_integers(tensors: dict[str, np.ndarray]) -> None:
    scale = np.abs(tensors[O_PROJ]).astype(np.float32).max() / np.float32(127)
    tensors[O_PROJ] = np.rint(tensors[O_PROJ].astype(np.float32) / scale).astype(np.int8)
    tensors[f"{O_PROJ}_scale"] = np.array([scale])


def test_weights_that_are_integers_are_refused(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path
):
    def without_scale(tensors: dict[str, np.ndarray]) -> None:
        to_integers(tensors)
        del tensors[f"{O_PROJ}_scale"]

    with pytest.raises(CheckpointError, match=f"{O_PROJ} of type int8") as caught:
        convert(tmp_path / "x.ninfer", "qwen3_8_27b_bf16", model=change_weights(without_scale))
    assert caught.value.tensors == (O_PROJ,)


def test_a_recipe_may_apply_the_scales(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path
):
    recipe = tmp_path / "scaled.py"
    recipe.write_text(
        "import numpy as np\n"
        "from ninfer_quant.sources.logical import LogicalSource\n"
        f"NAME = {O_PROJ!r}\n"
        "class Scaled(LogicalSource):\n"
        "    def __init__(self, words, scale):\n"
        "        super().__init__(words.shape, NAME, (*words.tensors, *scale.tensors))\n"
        "        self.words, self.scale = words, scale\n"
        "    def _read(self, begin, end):\n"
        "        scale = self.scale.read_values(0, 1)\n"
        "        return self.words.read_values(begin, end).astype(np.float32) * scale\n"
        "def configure(model, recipe, sources):\n"
        "    words, scale = (sources['base'].raw(NAME + s) for s in ('', '_scale'))\n"
        "    recipe.assign('text/layers/3/attention/output', source=Scaled(words, scale))\n",
        encoding="utf-8",
    )
    with open_artifact(
        convert(
            tmp_path / "scaled.ninfer",
            "qwen3_8_27b_bf16",
            model=change_weights(to_integers),
            overrides=(str(recipe),),
        )
    ) as artifact:
        values = artifact.decode_parameter("text/layers/3/attention/output")
    assert 0 < np.abs(values).max() < 2


def test_a_checkpoint_without_a_vision_tower_says_so(
    convert: Convert, checkpoint_copy: Path, tmp_path: Path
):
    path = checkpoint_copy / "config.json"
    config = json.loads(path.read_text("utf-8"))
    del config["vision_config"]
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json: .* no vision component") as caught:
        convert(tmp_path / "tiny.ninfer", model=checkpoint_copy)
    assert caught.value.hint == "leave vision out of --components"


def test_an_unsupported_value_is_reported_with_its_file(
    convert: Convert, checkpoint_copy: Path, tmp_path: Path
):
    path = checkpoint_copy / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["text_config"]["hidden_size"] = -4
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UnsupportedConfigError, match=r"config\.json: .*hidden_size = -4"):
        convert(tmp_path / "tiny.ninfer", model=checkpoint_copy)


# --- the output ----------------------------------------------------------------------------


@pytest.mark.parametrize("existing", ["tiny.ninfer", "tiny.ninfer.conversion.json"])
def test_existing_outputs_are_kept_unless_forced(convert: Convert, tmp_path: Path, existing: str):
    (tmp_path / existing).write_text("precious", encoding="utf-8")
    with pytest.raises(UsageError, match="exists"):
        convert(tmp_path / "tiny.ninfer")
    assert remaining(tmp_path) == [existing]
    assert (tmp_path / existing).read_text("utf-8") == "precious"
    convert(tmp_path / "tiny.ninfer", force=True)
    assert remaining(tmp_path) == ["tiny.ninfer", "tiny.ninfer.conversion.json"]
    assert (tmp_path / existing).stat().st_size > 10_000


def test_an_existing_part_is_kept(convert: Convert, tmp_path: Path):
    part = tmp_path / "tiny.ninfer.part-0002"
    part.write_text("precious", encoding="utf-8")
    with pytest.raises(UsageError, match="part-0002"):
        convert(tmp_path / "tiny.ninfer", max_file_bytes=3_000_000)
    assert remaining(tmp_path) == [part.name]


def test_a_forced_output_leaves_no_parts_of_the_old_one(convert: Convert, tmp_path: Path):
    other = tmp_path / "tiny.ninfer.part-x"
    other.write_text("not a part", encoding="utf-8")
    convert(tmp_path / "tiny.ninfer", max_file_bytes=3_000_000)
    assert (tmp_path / "tiny.ninfer.part-0003").exists()
    convert(tmp_path / "tiny.ninfer", max_file_bytes=6_000_000, force=True)
    assert remaining(tmp_path) == [
        "tiny.ninfer",
        "tiny.ninfer.conversion.json",
        "tiny.ninfer.part-0001",
        "tiny.ninfer.part-x",
    ]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_forced_output_leaves_files_of_others(convert: Convert, tmp_path: Path, is_folder: bool):
    foreign = tmp_path / "tiny.ninfer.part-0009"
    if is_folder:
        foreign.mkdir()
    else:
        foreign.write_text("precious", encoding="utf-8")
    convert(tmp_path / "tiny.ninfer", force=True)
    convert(tmp_path / "tiny.ninfer", force=True)
    assert remaining(tmp_path) == ["tiny.ninfer", "tiny.ninfer.conversion.json", foreign.name]
    assert is_folder or foreign.read_text("utf-8") == "precious"


@pytest.mark.parametrize("step", range(5))
def test_an_interrupted_replacement_keeps_the_old_artifact(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    output = tmp_path / "tiny.ninfer"
    convert(output, max_file_bytes=3_000_000)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(old) == 5
    rename, count = Path.rename, itertools.count()

    def interrupted(self: Path, target: Path) -> Path:
        if next(count) == step:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(output, "qwen3_8_27b_q6", max_file_bytes=3_000_000, force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_names_may_be_as_long_as_the_report_allows(convert: Convert, tmp_path: Path):
    longest = 255 - len(".conversion.json")
    output = tmp_path / "tiny.ninfer".rjust(longest, "x")
    convert(output)
    assert remaining(tmp_path) == [output.name, report_path(output).name]
    with pytest.raises(UsageError, match=r"has 256 bytes \(expected at most 255\)"):
        convert(tmp_path / f"x{output.name}")


def test_a_failure_keeps_what_force_would_have_replaced(
    convert: Convert, tmp_path: Path, checkpoint_copy: Path
):
    output = tmp_path / "tiny.ninfer"
    output.write_text("precious", encoding="utf-8")
    os.truncate(checkpoint_copy / "model.safetensors", 100_000)
    with pytest.raises(CheckpointError):
        convert(output, model=checkpoint_copy, force=True)
    assert output.read_text("utf-8") == "precious"


@pytest.mark.parametrize("link", [os.symlink, os.link, None])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_an_output_that_is_an_input_is_refused_even_when_forced(
    convert: Convert, checkpoint_copy: Path, tmp_path: Path, link: Any, name: str
):
    source = checkpoint_copy / name
    before = source.read_bytes()
    output = source
    if link is not None:
        output = tmp_path / "tiny.ninfer"
        link(source, output)
    with pytest.raises(UsageError, match="same file as input"):
        convert(output, model=checkpoint_copy, force=True)
    assert source.read_bytes() == before


def test_a_folder_is_no_output(convert: Convert, tmp_path: Path):
    (tmp_path / "tiny.ninfer").mkdir()
    with pytest.raises(UsageError, match="folder"):
        convert(tmp_path / "tiny.ninfer", force=True)


def test_folders_above_the_output_are_made_and_removed_after_a_failure(
    convert: Convert, change_weights: Callable[[Change], Path], tmp_path: Path
):
    def poison(tensors: dict[str, np.ndarray]) -> None:
        tensors["mtp.norm.weight"] = np.full(256, np.nan, ml_dtypes.bfloat16)

    output = tmp_path / "a" / "b" / "tiny.ninfer"
    with pytest.raises(ConversionError):
        convert(output, model=change_weights(poison))
    assert remaining(tmp_path) == []
    convert(output)
    assert remaining(output.parent) == ["tiny.ninfer", "tiny.ninfer.conversion.json"]


def test_too_little_space_is_refused_before_anything_is_read(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    free = SimpleNamespace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(DiskSpaceError, match=r"needs \d+ bytes, the disk has 1000") as caught:
        convert(tmp_path / "tiny.ninfer")
    assert caught.value.exit_code == ExitCode.CAPACITY
    assert remaining(tmp_path) == []


def test_a_disk_that_fills_up_is_a_capacity_error(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = ArtifactWriter.write

    def write(self: ArtifactWriter, object_id: str, offset: int, data: Any) -> None:
        if object_id == "weight/000020":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, object_id, offset, data)

    monkeypatch.setattr(ArtifactWriter, "write", write)
    with pytest.raises(DiskSpaceError):
        convert(tmp_path / "tiny.ninfer", jobs=2)
    assert remaining(tmp_path) == []


def test_another_error_of_the_operating_system_passes(tmp_path: Path):
    with pytest.raises(PermissionError), staging.disk_full_as_error(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_a_target_that_appears_at_the_last_moment_is_kept(tmp_path: Path):
    output = tmp_path / "out.ninfer"
    with staging_folder(output) as folder:
        for name in ("out.ninfer.part-0001", report_path(output).name, "out.ninfer"):
            (folder / name).write_text("new", encoding="utf-8")
        output.write_text("somebody else's", encoding="utf-8")
        names = ["out.ninfer.part-0001", report_path(output).name, "out.ninfer"]
        with pytest.raises(UsageError, match="appeared"):
            publish(folder, names, output, force=False)
    assert remaining(tmp_path) == ["out.ninfer"]
    assert output.read_text("utf-8") == "somebody else's"


# --- interruption --------------------------------------------------------------------------


SLOW_RECIPE = """
import time

from ninfer_quant.methods.request import MethodJob
from ninfer_quant.methods.cast_direct import plan_cast_direct

def slow(request):
    job = plan_cast_direct(request)

    class Slow:
        def __init__(self, output):
            self.output = output

        def write_values(self, begin, words):
            time.sleep(0.02)
            self.output.write_values(begin, words)

    return MethodJob(lambda output: job.produce(Slow(output)))

def configure(model, recipe, sources):
    recipe.assign("text/*", method=slow)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interruption_leaves_no_file(checkpoint: Path, tmp_path: Path, jobs: int):
    output = tmp_path / "out" / "slow.ninfer"
    (tmp_path / "slow.py").write_text(SLOW_RECIPE, encoding="utf-8")
    code = "from ninfer_quant.cli.convert import main; main()"
    command = [sys.executable, "-c", code, "--model", str(checkpoint), "--out", str(output)]
    command += ["--recipe", str(tmp_path / "slow.py"), "--rows-per-chunk", "1"]
    command += ["--jobs", str(jobs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("out/.slow.ninfer.*/.slow.ninfer.*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == ExitCode.INTERRUPTED, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert stderr.rstrip().endswith("interrupted")
    assert not output.parent.exists()
