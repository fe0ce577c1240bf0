"""The tiny trained checkpoint, converted and read back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import Artifact, SafetensorsCheckpoint, TensorRecord, get_format, open_artifact
from ninfer_format.container import file_set
from ninfer_format.container.file_set import FileSetWriter
from ninfer_format.dtypes import GroupedFormat
from ninfer_format.errors import CheckpointError
from ninfer_format.verification.conversion_report import report_path
from ninfer_quant.cli.plan_table import plan_document
from ninfer_quant.errors import VerificationError
from ninfer_quant.methods.request import MethodRequest
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion, work_bytes
from ninfer_quant.pipeline.verify import VerifyMode
from ninfer_quant.recipes.loading import load_recipe
from ninfer_quant.resources.tokenizer import SPLIT_PATTERN

Convert = Callable[..., Path]

PREFIX = "model.language_model."


def report_of(artifact: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(report_path(artifact).read_text("utf-8"))
    return report


@pytest.fixture(scope="module")
def source(checkpoint: Path) -> Callable[[str], np.ndarray]:
    """Tensors of the checkpoint as float32 arrays."""
    tensors = SafetensorsCheckpoint(checkpoint)

    def read(name: str) -> np.ndarray:
        values = tensors.read(name).astype(np.float32)
        return np.asarray(values).reshape(tensors.info(name).shape)

    return read


@pytest.fixture(scope="module")
def expected(source: Callable[[str], np.ndarray]) -> Mapping[str, np.ndarray]:
    """Parameters of every kind, taken from the checkpoint by hand."""
    q_proj = source(f"{PREFIX}layers.3.self_attn.q_proj.weight")
    qkv = source(f"{PREFIX}layers.0.linear_attn.in_proj_qkv.weight")
    vision_qkv = source("model.visual.blocks.1.attn.qkv.weight")
    return {
        "text/token_embedding": source(f"{PREFIX}embed_tokens.weight"),
        "text/output_head": source("lm_head.weight"),
        "text/final_norm": source(f"{PREFIX}norm.weight"),
        "text/layers/3/attention/query": q_proj.reshape(2, 2, 256, 256)[:, 0].reshape(512, 256),
        "text/layers/3/attention/gate": q_proj.reshape(2, 2, 256, 256)[:, 1].reshape(512, 256),
        "text/layers/3/attention/output": source(f"{PREFIX}layers.3.self_attn.o_proj.weight"),
        "text/layers/0/gdn/query": qkv[:256],
        "text/layers/0/gdn/key": qkv[256:512],
        "text/layers/0/gdn/value": qkv[512:],
        "text/layers/0/gdn/z": source(f"{PREFIX}layers.0.linear_attn.in_proj_z.weight"),
        "text/layers/0/gdn/convolution": source(f"{PREFIX}layers.0.linear_attn.conv1d.weight")[
            :, 0, :
        ].T,
        "text/layers/0/gdn/a_log": source(f"{PREFIX}layers.0.linear_attn.A_log"),
        "text/layers/0/gdn/dt_bias": source(f"{PREFIX}layers.0.linear_attn.dt_bias"),
        "text/layers/0/gdn/norm": source(f"{PREFIX}layers.0.linear_attn.norm.weight"),
        "text/layers/0/gdn/a_projection": source(f"{PREFIX}layers.0.linear_attn.in_proj_a.weight"),
        "text/layers/5/mlp/gate": source(f"{PREFIX}layers.5.mlp.gate_proj.weight"),
        "text/layers/5/mlp/down": source(f"{PREFIX}layers.5.mlp.down_proj.weight"),
        "mtp/input_projection": source("mtp.fc.weight"),
        "mtp/layers/0/mlp/up": source("mtp.layers.0.mlp.up_proj.weight"),
        "vision/patch_embedding": source("model.visual.patch_embed.proj.weight").reshape(128, -1),
        "vision/position_embedding": source("model.visual.pos_embed.weight"),
        "vision/layers/1/attention/key": vision_qkv[128:256],
        "vision/layers/1/attention/key_bias": source("model.visual.blocks.1.attn.qkv.bias")[
            128:256
        ],
        "vision/merger/fc2": source("model.visual.merger.linear_fc2.weight"),
    }


def scales_of(artifact: Artifact, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The stored scale of every element of a grouped parameter."""
    binding = artifact.directory.bindings[name]
    (part,) = binding.parts or (None,)
    object_id = part.object if part is not None else binding.object
    assert object_id is not None
    record = artifact.record(object_id)
    assert isinstance(record, TensorRecord)
    format_ = get_format(record.format)
    assert isinstance(format_, GroupedFormat)
    scales = artifact.words(object_id).scales.view(np.float16).astype(np.float32)
    wide = np.repeat(scales, format_.group, axis=1)[:, : record.shape[1]].reshape(-1)
    begin, end = (part.begin, part.end) if part is not None else (0, wide.size)
    return wide[begin:end].reshape(shape)


def test_bf16_artifact_holds_the_checkpoint_exactly(
    direct: Path, expected: Mapping[str, np.ndarray]
):
    with open_artifact(direct) as artifact:
        for name, values in expected.items():
            np.testing.assert_array_equal(artifact.decode_parameter(name, values.shape), values)


def test_quantized_values_are_within_half_a_scale(
    quantized: Path, expected: Mapping[str, np.ndarray]
):
    formats = {item["parameter"]: item["format"] for item in report_of(quantized)["statistics"]}
    grouped = 0
    with open_artifact(quantized) as artifact:
        for name, values in expected.items():
            stored = artifact.decode_parameter(name, values.shape)
            if formats[name] in ("bf16", "fp32"):
                np.testing.assert_array_equal(stored, values)
                continue
            grouped += 1
            # Half a step, and what two roundings to binary32 can add to it.
            bound = scales_of(artifact, name, values.shape) * np.float32(0.5 * (1 + 2**-15))
            assert (np.abs(stored - values) <= bound).all(), name
    assert grouped >= 14


def test_every_parameter_is_bound_and_covered(quantized: Path, direct: Path):
    with open_artifact(quantized) as artifact, open_artifact(direct) as exact:
        assert set(artifact.directory.bindings) == set(exact.directory.bindings)
        total = 0
        for name in artifact.directory.bindings:
            elements = artifact.parameter_elements(name)
            assert elements == exact.parameter_elements(name)
            total += elements
    assert total == 13_453_744


def test_relative_error_of_each_format_is_what_its_bits_give(quantized: Path):
    """Trained weights are near Gaussian; a bit more halves the error."""
    errors: dict[str, list[float]] = {}
    for item in report_of(quantized)["statistics"]:
        errors.setdefault(item["format"], []).append(item["relative_frobenius"])
    means = {name: float(np.mean(values)) for name, values in errors.items()}
    assert means["bf16"] == means["fp32"] == 0
    assert 0.08 < means["q4_g64_fp16"] < 0.14
    assert 0.04 < means["q5_g64_fp16"] < 0.07
    assert 0.02 < means["q6_g64_fp16"] < 0.03
    assert 0.004 < means["q8_g32_fp16"] < 0.007


def test_uses_and_policies(quantized: Path):
    with open_artifact(quantized) as artifact:
        uses = {(use.parameter, use.input): use for use in artifact.directory.uses}
        bindings = artifact.directory.bindings
    assert ("text/output_head", "text/final_hidden") in uses
    assert ("text/output_head", "mtp/final_hidden") in uses
    assert ("text/layers/3/attention/gate", "text/layers/3/mixer_input") in uses
    assert ("text/layers/0/gdn/a_projection", "text/layers/0/mixer_input") in uses
    assert ("vision/merger/fc2", "vision/merger/activation") in uses
    assert ("mtp/layers/0/mlp/down", "mtp/layers/0/mlp/product") in uses
    allowed = {name for (name, _), use in uses.items() if use.activation_policy == "AllowA8"}
    assert allowed == {f"text/layers/{i}/mlp/{role}" for i in range(8) for role in ("gate", "up")}
    assert all(not use.auxiliaries for use in uses.values())
    assert {name for name, _ in uses} < set(bindings)


def test_components_and_resources(quantized: Path, checkpoint: Path):
    with open_artifact(quantized) as artifact:
        components = artifact.directory.components
        assert set(components) == {"text", "vision", "mtp"}
        assert components["text"].target is None
        assert components["vision"].target == components["mtp"].target == "text"
        assert components["text"].config["architectures"] == ["Qwen3_5ForCausalLM"]
        assert dict(components["vision"].resources) == {
            role: f"resource/vision/{role}"
            for role in ("preprocessor_config.json", "video_preprocessor_config.json")
        }
        ids = [record.id for record in artifact.directory.objects]
        assert ids[:6] == [
            *components["text"].resources.values(),
            *components["vision"].resources.values(),
        ]
        assert ids[6:] == [f"weight/{index:06d}" for index in range(len(ids) - 6)]
        for role in ("chat_template.jinja", "generation_config.json"):
            assert artifact.resource("text", role) == (checkpoint / role).read_bytes()
        tokenizer = json.loads(artifact.resource("text", "tokenizer.json"))
    steps = tokenizer["pre_tokenizer"]["pretokenizers"]
    assert steps[0]["pattern"]["Regex"] == SPLIT_PATTERN


def test_the_artifact_names_its_sources_but_no_place(quantized: Path, checkpoint: Path):
    with open_artifact(quantized) as artifact:
        directory = artifact.directory
    assert directory.name == "checkpoint"
    weights = (checkpoint / "model.safetensors").read_bytes()
    assert directory.provenance == {
        "converter": "ninfer-convert",
        "recipe": {"name": "qwen3_8_27b"},
        "sources": {
            "base": {
                "name": "checkpoint",
                "files": {
                    "config.json": sha256((checkpoint / "config.json").read_bytes()).hexdigest(),
                    "model.safetensors": sha256(weights).hexdigest(),
                },
            }
        },
    }
    head = quantized.read_bytes()[:65536]
    assert str(checkpoint).encode() not in head


def test_the_report(quantized: Path, checkpoint: Path):
    report = report_of(quantized)
    text = report_path(quantized).read_text("utf-8")
    assert text.endswith("}\n")
    assert "NaN" not in text
    assert "Infinity" not in text
    with open_artifact(quantized) as artifact:
        directory = artifact.directory
        assert report["artifact_id"] == artifact.artifact_id.hex()
    assert report["provenance"] == directory.provenance
    assert report["components"]["text"]["config"] == directory.components["text"].config
    assert report["objects"] == len(directory.objects)
    assert report["parameters"] == len(directory.bindings) == len(report["statistics"])
    assert report["uses"] == len(directory.uses)
    assert sum(report["formats"].values()) == len(report["methods"]) == len(directory.tensors)
    assert report["sources"]["base"]["path"] == str(checkpoint)
    (file,) = report["files"]
    assert file["path"] == quantized.name
    assert file["sha256"] == sha256(quantized.read_bytes()).hexdigest()
    assert file["payload_bytes"] == report["payload_bytes"] == directory.payload_bytes
    assert report["public_tokens"] == 4096
    assert report["warnings"] == []
    assert report["verify"] == "full"
    assert report["resource_changes"] == [
        "tokenizer.json: replaced the split pattern",
        *[change for change in report["resource_changes"] if "tokenizer_config" in change],
    ]
    assert {"ninfer-quant", "ninfer-format", "numpy", "python"} <= set(report["versions"])


def test_the_report_has_the_hash_of_every_object_and_of_the_directory(quantized: Path):
    report = report_of(quantized)
    content = quantized.read_bytes()
    with open_artifact(quantized) as artifact:
        payload_start = len(content) - artifact.payload_bytes
        assert report["object_sha256"] == {
            record.id: sha256(
                content[payload_start + record.offset : payload_start + record.end]
            ).hexdigest()
            for record in artifact.directory.objects
        }
    assert report["directory_sha256"] == sha256(content[:payload_start]).hexdigest()


def test_report_statistics_equal_an_independent_computation(
    quantized: Path, expected: Mapping[str, np.ndarray]
):
    statistics = {item["parameter"]: item for item in report_of(quantized)["statistics"]}
    with open_artifact(quantized) as artifact:
        for name in ("text/layers/5/mlp/gate", "text/token_embedding", "vision/merger/fc2"):
            values = expected[name].astype(np.float64)
            error = artifact.decode_parameter(name, values.shape).astype(np.float64) - values
            item = statistics[name]
            relative = np.linalg.norm(error) / np.linalg.norm(values)
            assert item["relative_frobenius"] == pytest.approx(relative, rel=1e-6)
            assert item["sqnr_db"] == pytest.approx(-20 * np.log10(relative), rel=1e-6)
            assert item["max_abs_error"] == pytest.approx(np.abs(error).max(), rel=1e-6)
    assert statistics["text/layers/5/mlp/gate"]["bits_per_weight"] == 4.25
    assert statistics["text/token_embedding"]["bits_per_weight"] == 8.5
    assert statistics["text/final_norm"]["sqnr_db"] is None


# --- the same bytes whatever the way ---------------------------------------------------------


@pytest.mark.parametrize(
    "way",
    [
        {"rows_per_chunk": 13},
        {"rows_per_chunk": 100, "jobs": 3},
        {"rows_per_chunk": 100_000, "verify": "none"},
    ],
)
def test_chunks_and_workers_do_not_change_a_byte(
    convert: Convert, quantized: Path, tmp_path: Path, way: dict[str, Any]
):
    other = convert(tmp_path / "tiny.ninfer", **way)
    assert other.read_bytes() == quantized.read_bytes()


def test_the_place_of_the_checkpoint_does_not_change_a_byte(
    convert: Convert, quantized: Path, checkpoint: Path, tmp_path: Path
):
    moved = Path(shutil.copytree(checkpoint, tmp_path / "elsewhere" / "checkpoint"))
    other = convert(tmp_path / "other name.ninfer", model=moved)
    assert other.read_bytes() == quantized.read_bytes()


def test_random_ids_differ_and_everything_else_does_not(
    convert: Convert, quantized: Path, tmp_path: Path
):
    other = convert(tmp_path / "tiny.ninfer", artifact_id=None).read_bytes()
    same = quantized.read_bytes()
    assert other[16:32] != same[16:32]
    assert other[:16] + other[32:] == same[:16] + same[32:]


def test_parts_hold_the_same_payload(convert: Convert, quantized: Path, tmp_path: Path):
    limit = 3_000_000
    output = convert(tmp_path / "tiny.ninfer", max_file_bytes=limit, verify="full")
    files = sorted(tmp_path.glob("tiny.ninfer*[!n]"))
    parts = [path for path in files if ".part-" in path.name]
    assert [path.name for path in parts] == [f"tiny.ninfer.part-{i:04d}" for i in (1, 2, 3)]
    assert all(path.stat().st_size <= limit for path in (output, *parts))
    with open_artifact(output) as split, open_artifact(quantized) as whole:
        assert split.payload_bytes == whole.payload_bytes
        length = whole.payload_bytes
        assert split.read_range(0, length) == whole.read_range(0, length)
        assert split.directory.bindings == whole.directory.bindings
    listed = {item["path"]: item["sha256"] for item in report_of(output)["files"]}
    assert listed == {path.name: sha256(path.read_bytes()).hexdigest() for path in (output, *parts)}


# --- other checkpoints and recipes -----------------------------------------------------------


def test_components_that_are_not_selected_leave_nothing(convert: Convert, tmp_path: Path):
    output = convert(tmp_path / "text.ninfer", components=("text",))
    with open_artifact(output) as artifact:
        assert list(artifact.directory.components) == ["text"]
        assert all(name.startswith("text/") for name in artifact.directory.bindings)
        inputs = {use.input for use in artifact.directory.uses}
    assert not any(name.startswith("mtp/") for name in inputs)
    assert report_of(output)["warnings"] == []


def test_an_override_runs_after_the_recipe(convert: Convert, quantized: Path, tmp_path: Path):
    override = tmp_path / "override.py"
    override.write_text(
        "def configure(model, recipe, sources):\n"
        "    assert set(sources) == {'base'}\n"
        "    recipe.assign('text/layers/3/mlp/*', format='q8_g32_fp16', method='grouped_absmax')\n"
        "    recipe.assign('text/layers/3/mlp/*', activation_policy='A16Only')\n",
        encoding="utf-8",
    )
    output = convert(tmp_path / "tiny.ninfer", overrides=(str(override),))
    formats = {item["parameter"]: item["format"] for item in report_of(output)["statistics"]}
    before = {item["parameter"]: item["format"] for item in report_of(quantized)["statistics"]}
    assert {name for name in formats if formats[name] != before[name]} == {
        f"text/layers/3/mlp/{role}" for role in ("gate", "up", "down")
    }
    with open_artifact(output) as artifact:
        assert artifact.directory.provenance["overrides"] == [
            {
                "name": "override.py:configure",
                "sha256": sha256(override.read_bytes()).hexdigest(),
            }
        ]


def test_a_recipe_file_can_do_what_no_official_one_does(
    convert: Convert, direct: Path, tmp_path: Path
):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "import numpy as np\n"
        "from ninfer_format import grouped_absmax\n"
        "from ninfer_quant.methods.request import MethodJob\n"
        "from ninfer_quant.sources.logical import ArraySource\n"
        "\n"
        "def shrunk(request):\n"
        "    def produce(output):\n"
        "        K = request.target.shape[1]\n"
        "        for first, last in request.chunks():\n"
        "            values = request.values(first * K, last * K).reshape(-1, K)\n"
        "            values = values.astype(np.float32) * request.parameters['factor']\n"
        "            words = grouped_absmax(values.astype(np.float32), request.target.format)\n"
        "            output.write_rows(first, words)\n"
        "    return MethodJob(produce)\n"
        "\n"
        "def configure(model, recipe, sources):\n"
        "    up = 'text/layers/0/mlp/up'\n"
        "    recipe.assign(up, format='q8_g32_fp16', method=shrunk, parameters={'factor': 0.5})\n"
        "    recipe.share('text/layers/1/mlp/up', up)\n"
        "    ones = ArraySource(np.ones(256, np.float32), 'ones')\n"
        "    recipe.assign('text/final_norm', source=ones)\n"
        "    recipe.assign('text/layers/2/mlp/up', rows=(0, 100), format='fp32')\n"
        "    norms = ['text/layers/4/post_attention_norm', 'text/layers/4/input_norm']\n"
        "    recipe.group(norms, shape=(2, 256))\n"
        "    for value, use in enumerate(model.parameters['text/output_head'].inputs, 2):\n"
        "        divisor = {'activation_input_divisor': value + 0.5}\n"
        "        recipe.use('text/output_head', use, auxiliaries=divisor)\n",
        encoding="utf-8",
    )
    output = convert(tmp_path / "mine.ninfer", str(recipe), verify="full")
    with open_artifact(output) as artifact:
        bindings = artifact.directory.bindings
        assert bindings["text/layers/1/mlp/up"] == bindings["text/layers/0/mlp/up"]
        assert (artifact.decode_parameter("text/final_norm") == 1).all()
        formats = [artifact.record(part.object) for part in bindings["text/layers/2/mlp/up"].parts]
        assert [record.format for record in formats if isinstance(record, TensorRecord)] == [
            "fp32",
            "bf16",
        ]
        with open_artifact(direct) as reference:
            for name in ("post_attention_norm", "input_norm"):
                parameter = f"text/layers/4/{name}"
                assert bindings[parameter].parts[0].object == "weight/000000"
                np.testing.assert_array_equal(
                    artifact.decode_parameter(parameter), reference.decode_parameter(parameter)
                )
        uses = [use for use in artifact.directory.uses if use.parameter == "text/output_head"]
        divisors = [use.auxiliaries["activation_input_divisor"].object or "" for use in uses]
        assert divisors == ["auxiliary/000000", "auxiliary/000001"]
        assert [artifact.decode_object(name).item() for name in divisors] == [2.5, 3.5]
    statistics = {item["parameter"]: item for item in report_of(output)["statistics"]}
    assert statistics["text/layers/0/mlp/up"]["relative_frobenius"] == pytest.approx(0.5, rel=1e-3)
    assert "text/layers/1/mlp/up" not in statistics
    assert report_of(output)["shared"] == {"text/layers/1/mlp/up": "text/layers/0/mlp/up"}
    methods = {name: item for item in report_of(output)["methods"] for name in item["parameters"]}
    assert methods["text/layers/0/mlp/up"]["method"].endswith(":shrunk")
    assert methods["text/layers/0/mlp/up"]["method_parameters"] == {"factor": 0.5}


def test_a_plan_lists_shared_parameters(checkpoint: Path, tmp_path: Path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "def configure(model, recipe, sources):\n"
        "    recipe.share('text/layers/1/mlp/up', 'text/layers/0/mlp/up')\n",
        encoding="utf-8",
    )
    conversion = plan_conversion(ConversionRequest(checkpoint, load_recipe(str(recipe))))
    document = plan_document(conversion)
    rows = {row["parameter"]: row for row in document["assignments"]}
    assert rows.keys() == conversion.preparation.bindings.keys()
    owner, shared = rows["text/layers/0/mlp/up"], rows["text/layers/1/mlp/up"]
    assert (shared["source"], shared["method"], shared["bytes"]) == (
        "text/layers/0/mlp/up",
        "shared",
        0,
    )
    assert (shared["object"], shared["format"]) == (owner["object"], owner["format"])


def test_a_float32_checkpoint_is_rounded_with_a_warning(
    convert: Convert,
    checkpoint_copy: Path,
    write_safetensors: Callable[[Path, Mapping[str, np.ndarray]], None],
    tmp_path: Path,
):
    weights = checkpoint_copy / "model.safetensors"
    tensors = read_all(weights)
    name = f"{PREFIX}layers.1.linear_attn.norm.weight"
    exact = tensors[name].copy()
    tensors[name][7] += np.float32(2**-12)
    write_safetensors(weights, tensors)
    output = convert(tmp_path / "tiny.ninfer", model=checkpoint_copy)
    (warning,) = report_of(output)["warnings"]
    assert "text/layers/1/gdn/norm" in warning
    assert "0.000244" in warning
    with open_artifact(output) as artifact:
        stored = artifact.decode_parameter("text/layers/1/gdn/norm")
    expected = tensors[name].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(stored, expected)
    np.testing.assert_array_equal(expected, exact)


def read_all(weights: Path) -> dict[str, np.ndarray]:
    tensors = SafetensorsCheckpoint(weights)
    return {name: tensors.read(name).reshape(tensors.info(name).shape) for name in tensors.names}


def test_a_tied_head_is_read_from_the_embedding(
    convert: Convert,
    checkpoint_copy: Path,
    write_safetensors: Callable[[Path, Mapping[str, np.ndarray]], None],
    tmp_path: Path,
):
    weights = checkpoint_copy / "model.safetensors"
    tensors = read_all(weights)
    del tensors["lm_head.weight"]
    write_safetensors(weights, tensors)
    config = json.loads((checkpoint_copy / "config.json").read_text("utf-8"))
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (checkpoint_copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    output = convert(tmp_path / "tied.ninfer", "qwen3_8_27b_bf16", model=checkpoint_copy)
    with open_artifact(output) as artifact:
        head = artifact.decode_parameter("text/output_head")
        np.testing.assert_array_equal(head, artifact.decode_parameter("text/token_embedding"))


def test_unused_tensors_are_a_warning_and_expected_ones_are_not(
    convert: Convert,
    checkpoint_copy: Path,
    write_safetensors: Callable[[Path, Mapping[str, np.ndarray]], None],
    tmp_path: Path,
):
    weights = checkpoint_copy / "model.safetensors"
    tensors = read_all(weights)
    tensors["model.extra.weight"] = np.zeros(1, np.float32)
    write_safetensors(weights, tensors)
    output = convert(tmp_path / "tiny.ninfer", model=checkpoint_copy, components=("text",))
    assert report_of(output)["warnings"] == [
        "tensors that no parameter uses (1): model.extra.weight"
    ]


def test_shards_give_the_same_payload_and_are_all_named(
    convert: Convert,
    quantized: Path,
    checkpoint_copy: Path,
    write_safetensors: Callable[[Path, Mapping[str, np.ndarray]], None],
    tmp_path: Path,
):
    split_into_shards(checkpoint_copy, write_safetensors)
    output = convert(tmp_path / "tiny.ninfer", model=checkpoint_copy)
    with open_artifact(output) as sharded, open_artifact(quantized) as whole:
        length = whole.payload_bytes
        assert sharded.read_range(0, length) == whole.read_range(0, length)
        files = sharded.directory.provenance["sources"]["base"]["files"]
    assert files == {
        path.name: sha256(path.read_bytes()).hexdigest()
        for path in checkpoint_copy.iterdir()
        if ".safetensors" in path.name or path.name == "config.json"
    }
    (checkpoint_copy / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors") as caught:
        convert(tmp_path / "other.ninfer", model=checkpoint_copy)
    assert len(caught.value.tensors) == 90


def split_into_shards(
    folder: Path, write_safetensors: Callable[[Path, Mapping[str, np.ndarray]], None]
) -> None:
    tensors = read_all(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    shards = {"model-1.safetensors": names[0::2], "model-2.safetensors": names[1::2]}
    for shard, members in shards.items():
        write_safetensors(folder / shard, {name: tensors[name] for name in members})
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


# --- verification ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sample", "full"])
def test_verification_finds_values_that_were_stored_wrong(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
):
    original = MethodRequest.values
    reads: list[tuple[int, int]] = []

    def off(self: MethodRequest, begin: int, end: int) -> np.ndarray:
        values = original(self, begin, end)
        if self.parameter_names == ("text/layers/0/mlp/down",):
            reads.append((begin, end))
            if len(reads) == 1:
                return values.astype(np.float32) * np.float32(1.25)
        return values

    monkeypatch.setattr(MethodRequest, "values", off)
    with pytest.raises(VerificationError, match="text/layers/0/mlp/down"):
        convert(tmp_path / "tiny.ninfer", verify=mode)
    assert list(tmp_path.iterdir()) == []


def test_verification_finds_bytes_that_the_disk_has_changed(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One bit of a code, so that the value stays within the bound of its method."""
    written = FileSetWriter.write
    changed: list[int] = []

    def flip(self: FileSetWriter, offset: int, data: memoryview) -> None:
        if not changed and len(data) > 10_000:
            changed.append(offset)
            data = memoryview(bytes([data[0] ^ 1]) + bytes(data[1:]))
        written(self, offset, data)

    monkeypatch.setattr(FileSetWriter, "write", flip)
    with pytest.raises(VerificationError, match="not those that were written"):
        convert(tmp_path / "tiny.ninfer", verify="hash")
    assert changed
    assert list(tmp_path.iterdir()) == []


def test_verification_finds_a_directory_that_the_disk_has_changed(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A digit of the configuration, so that the artifact can still be opened."""
    written = file_set._write_all

    def change(descriptor: int, data: memoryview, position: int) -> None:
        if position == 0:
            before = b'"rms_norm_eps":9.999999974752427e-07'
            assert bytes(data).count(before) == 1
            data = memoryview(bytes(data).replace(before, before.replace(b"e-07", b"e-06")))
        written(descriptor, data, position)

    monkeypatch.setattr(file_set, "_write_all", change)
    with pytest.raises(VerificationError, match="the directory is not the one"):
        convert(tmp_path / "tiny.ninfer", verify="hash")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verify", get_args(VerifyMode))
def test_progress_ends_at_the_whole_work(checkpoint: Path, tmp_path: Path, verify: VerifyMode):
    conversion = plan_conversion(ConversionRequest(checkpoint, load_recipe("qwen3_8_27b")))
    options = RunOptions(tmp_path / "tiny.ninfer", verify=verify)
    counted: list[int] = []
    run_conversion(conversion, options, lambda count, item: counted.append(count))
    assert sum(counted) == work_bytes(conversion, options)


def test_all_kinds_of_verification_leave_the_same_bytes(convert: Convert, tmp_path: Path):
    found = {
        convert(tmp_path / mode / "tiny.ninfer", verify=mode).read_bytes()
        for mode in get_args(VerifyMode)
    }
    assert len(found) == 1
