"""The recipes of the 35B model on a tiny mixture of experts: converted, read back and run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.runtime.models.oracle import oracle_logits
from tests.runtime.models.sequences import Sequence

from ninfer_format import Artifact, Nvfp4Words, TensorRecord, open_artifact
from ninfer_format.errors import CheckpointError
from ninfer_quant.errors import RecipeError
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_runtime.device import get_device
from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.engine.request import PromptInput, RequestOptions
from ninfer_runtime.models.qwen3_5.architecture import ARCHITECTURE
from ninfer_runtime.models.registry import load_model
from ninfer_runtime.sampling.params import SamplingOverrides

GOLDENS = np.load(Path(__file__).parents[1] / "data" / "tiny-moe" / "goldens.npz")
IDS = GOLDENS["tokens_33"]
TOLERANCE = 5e-5
E, D, INNER, LAYERS = 8, 128, 128, 4
COMPONENTS = ("text", "vision", "mtp")
EXPERTS = "text/layers/1/moe/experts"

Convert = Callable[..., Path]


@pytest.fixture(scope="module")
def convert_moe(tmp_path_factory: pytest.TempPathFactory) -> Convert:
    """Convert a checkpoint of the mixture and return the artifact's path."""

    def run(
        model: Path, recipe: str, components: tuple[str, ...] = COMPONENTS, **sources: Path
    ) -> Path:
        request = ConversionRequest(
            model=model,
            recipe=load_recipe(recipe),
            components=components,
            sources={name: str(path) for name, path in sources.items()},
            rows_per_chunk=100,
        )
        output = tmp_path_factory.mktemp("artifact") / "moe.ninfer"
        options = RunOptions(output, verify="full")
        run_conversion(plan_conversion(request), options, lambda num_bytes, item: None)
        return output

    return run


@pytest.fixture(scope="module")
def groupwise(convert_moe: Convert, tiny_moe: Path) -> Iterator[Artifact]:
    with open_artifact(convert_moe(tiny_moe, "qwen3_6_35b_a3b")) as artifact:
        yield artifact


def format_of(artifact: Artifact, name: str) -> str:
    (part, *_) = artifact.parts(name)
    records = {record.id: record for record in artifact.directory.objects}
    record = records[part.object]
    assert isinstance(record, TensorRecord)
    return record.format


def logits_of(artifact: Artifact, ids: np.ndarray = IDS) -> np.ndarray:
    model = load_model(artifact, get_device("cpu"))
    return Sequence(model, len(ids)).logits(ids)


def text_values(artifact: Artifact) -> dict[str, np.ndarray]:
    """Every parameter of the text, decoded by the format package."""
    configs = {"text": artifact.directory.components["text"].config}
    return {
        parameter.name: artifact.decode_parameter(parameter.name, parameter.shape)
        for parameter in ARCHITECTURE.parameters(configs)
    }


def oracle(artifact: Artifact, values: dict[str, np.ndarray]) -> np.ndarray:
    config = dict(artifact.directory.components["text"].config)
    return oracle_logits(config, values, IDS.tolist())


# --- as the checkpoint has it --------------------------------------------------------------------


def test_a_direct_artifact_gives_the_goldens(convert_moe: Convert, tiny_moe: Path, tmp_path: Path):
    recipe = tmp_path / "direct.py"
    recipe.write_text("def configure(model, recipe, sources):\n    pass\n", encoding="utf-8")
    with open_artifact(convert_moe(tiny_moe, str(recipe), ("text",))) as artifact:
        expected = GOLDENS["logits_33"]
        np.testing.assert_allclose(logits_of(artifact), expected, rtol=0, atol=TOLERANCE)


def test_both_layouts_of_the_experts_give_the_same_bytes(
    groupwise: Artifact, convert_moe: Convert, tiny_moe_per_expert: Path
):
    with open_artifact(convert_moe(tiny_moe_per_expert, "qwen3_6_35b_a3b")) as other:
        assert other.directory.objects == groupwise.directory.objects
        assert other.directory.bindings == groupwise.directory.bindings
        assert other.directory.uses == groupwise.directory.uses
        assert other.directory.components == groupwise.directory.components
        for record in groupwise.directory.objects:
            np.testing.assert_array_equal(
                other.read_object(record.id), groupwise.read_object(record.id)
            )


# --- the groupwise recipe ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("text/token_embedding", "q8_g32_fp16"),
        ("text/output_head", "q6_g64_fp16"),
        (f"{EXPERTS}/3/gate", "q4_g64_fp16"),
        (f"{EXPERTS}/7/up", "q4_g64_fp16"),
        (f"{EXPERTS}/0/down", "q5_g64_fp16"),
        ("text/layers/1/moe/shared/gate", "q8_g32_fp16"),
        ("text/layers/1/moe/shared/down", "q8_g32_fp16"),
        ("text/layers/1/moe/router", "bf16"),
        ("text/layers/1/moe/shared_score", "bf16"),
        ("text/layers/1/gdn/value", "q8_g32_fp16"),
        ("text/layers/1/gdn/a_projection", "bf16"),
        ("text/layers/1/gdn/a_log", "fp32"),
        ("text/layers/3/attention/output", "q8_g32_fp16"),
        ("mtp/layers/0/moe/experts/5/down", "q8_g32_fp16"),
        ("mtp/layers/0/moe/router", "bf16"),
        ("mtp/input_projection", "q8_g32_fp16"),
        ("vision/layers/0/mlp/fc1", "q4_g64_fp16"),
    ],
)
def test_formats_of_the_groupwise_recipe(groupwise: Artifact, name: str, format: str):
    assert format_of(groupwise, name) == format


def test_experts_lie_in_banks_in_the_order_of_their_rows(groupwise: Artifact):
    for block in ("text/layers/0/", "text/layers/3/", "mtp/layers/0/"):
        experts = [f"{block}moe/experts/{expert}" for expert in range(E)]
        gate_up = [f"{expert}/{role}" for expert in experts for role in ("gate", "up")]
        for names in (gate_up, [f"{expert}/down" for expert in experts]):
            parts = [part for name in names for part in groupwise.parts(name)]
            assert len({part.object for part in parts}) == 1
            size = INNER * D
            assert [(part.begin, part.end) for part in parts] == [
                (index * size, (index + 1) * size) for index in range(len(names))
            ]
        router, score = (
            groupwise.parts(f"{block}moe/{name}") for name in ("router", "shared_score")
        )
        assert router[0].object == score[0].object
        assert (score[0].begin, score[0].end) == (E * D, (E + 1) * D)


def test_a_quantized_mixture_runs_as_its_formulas_say(groupwise: Artifact):
    logits = logits_of(groupwise)
    expected = oracle(groupwise, text_values(groupwise))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
    # It is another model than the goldens', but related: strangers' logits differ by 1.1 deviations.
    error = np.abs(logits - GOLDENS["logits_33"])
    assert 1e-3 < error.mean() < 0.4 * GOLDENS["logits_33"].std()


def test_quantized_experts_are_near_the_checkpoint(groupwise: Artifact, tiny_moe_per_expert: Path):
    """Each expert is compared with its own tensors, so that none can take another's place."""
    for expert in range(E):
        for role, bound in (("gate", 0.11), ("up", 0.11), ("down", 0.055)):
            name = f"{EXPERTS}/{expert}/{role}"
            found = groupwise.decode_parameter(name, (128, 128))
            tensor = f"model.language_model.layers.1.mlp.experts.{expert}.{role}_proj.weight"
            stored = read_bf16(tiny_moe_per_expert, tensor, (128, 128))
            error = np.linalg.norm(found - stored) / np.linalg.norm(stored)
            assert 0 < error < bound


def read_bf16(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    words = np.frombuffer(data[8 + size + begin : 8 + size + end], np.uint16)
    return (words.astype(np.uint32) << 16).view(np.float32).reshape(shape)


def test_the_engine_answers_with_a_mixture(groupwise: Artifact):
    options = EngineOptions(groupwise.path, backend="cpu", max_context=256, prefill_chunk=128)
    with Engine(options) as engine:
        prepared = engine.prepare(PromptInput(raw_prompt="the answer in an error"))
        request = RequestOptions(max_output_tokens=6, sampling=SamplingOverrides(greedy=True))
        result = engine.submit(prepared, request).wait()
    model = load_model(groupwise, get_device("cpu"))
    ids = list(prepared.token_ids)
    for token in result.token_ids:
        assert token == Sequence(model, len(ids)).logits(ids)[-1][:275].argmax()
        ids.append(token)
    assert 1 <= len(result.token_ids) <= 6


# --- imported experts ----------------------------------------------------------------------------

NVFP4_TEXT = ("multimodal", "text_only")
PREFIXES = {"multimodal": "model.language_model.", "text_only": "model."}
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def module_of(layer: int, path: str) -> str:
    return f"layers.{layer}.mlp.{path}"


class Quantized:
    """Experts in nvfp4 as compressed-tensors stores them, every matrix with its own divisors."""

    def __init__(self) -> None:
        rng = np.random.default_rng(35)
        self.codes: dict[str, np.ndarray] = {}
        self.scales: dict[str, np.ndarray] = {}
        self.divisors: dict[str, tuple[np.float32, np.float32]] = {}
        for layer in range(LAYERS):
            paths = [
                f"experts.{e}.{role}_proj" for e in range(E) for role in ("gate", "up", "down")
            ]
            paths += [f"shared_expert.{role}_proj" for role in ("gate", "up", "down")]
            for path in paths:
                module = module_of(layer, path)
                self.codes[module] = rng.integers(0, 16, (128, 128), np.uint8)
                self.scales[module] = rng.integers(0x30, 0x41, (128, 8), np.uint8)
                weight, activation = rng.uniform(60, 90), rng.uniform(100, 900)
                self.divisors[module] = np.float32(weight), np.float32(activation)

    def values(self, module: str) -> np.ndarray:
        codes = self.codes[module]
        signs = np.where(codes & 8, np.float32(-1), np.float32(1))
        scales = self.scales[module].view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        values = signs * _MAGNITUDES[codes & 7] * np.repeat(scales, 16, axis=1)
        return np.asarray(values / self.divisors[module][0])

    def tensors(self, prefix: str) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for module, codes in self.codes.items():
            weight, activation = self.divisors[module]
            found[f"{prefix}{module}.weight_packed"] = codes[:, ::2] | codes[:, 1::2] << 4
            scales = self.scales[module].view(ml_dtypes.float8_e4m3fn)
            found[f"{prefix}{module}.weight_scale"] = scales
            found[f"{prefix}{module}.weight_global_scale"] = np.array([weight])
            found[f"{prefix}{module}.input_global_scale"] = np.array([activation])
        return found


def write(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    names = {"uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float32": "F32"}
    header: dict[str, Any] = {}
    end = 0
    for name, array in tensors.items():
        offsets = [end, end + array.nbytes]
        dtype = names[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in tensors.values())
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


@pytest.fixture(scope="module")
def quantized() -> Quantized:
    return Quantized()


@pytest.fixture(scope="module", params=NVFP4_TEXT)
def imported(
    request: pytest.FixtureRequest,
    convert_moe: Convert,
    tiny_moe: Path,
    quantized: Quantized,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Artifact]:
    """The mixture with imported experts, whose tensors have either prefix."""
    parent = tmp_path_factory.mktemp("quantized")
    folder = write(parent / "source", quantized.tensors(PREFIXES[request.param]))
    path = convert_moe(tiny_moe, "qwen3_6_35b_a3b_nvfp4", ("text", "mtp"), quantized=folder)
    with open_artifact(path) as artifact:
        yield artifact


def test_imported_words_are_unchanged(imported: Artifact, quantized: Quantized):
    for layer in range(LAYERS):
        prefix = f"text/layers/{layer}/moe/"
        gate_up = [(e, role) for e in range(E) for role in ("gate", "up")]
        banks = {
            f"{prefix}experts/0/gate": [f"experts.{e}.{role}_proj" for e, role in gate_up],
            f"{prefix}experts/0/down": [f"experts.{e}.down_proj" for e in range(E)],
            f"{prefix}shared/gate": ["shared_expert.gate_proj", "shared_expert.up_proj"],
            f"{prefix}shared/down": ["shared_expert.down_proj"],
        }
        for name, paths in banks.items():
            (part,) = imported.parts(name)
            codec = imported.codec(part.object)
            modules = [module_of(layer, path) for path in paths]
            assert (codec.format, codec.divisors) == ("nvfp4", len(modules))
            words = imported.words(part.object)
            assert isinstance(words, Nvfp4Words)
            codes = np.concatenate([quantized.codes[module] for module in modules])
            scales = np.concatenate([quantized.scales[module] for module in modules])
            divisors = np.array([quantized.divisors[module][0] for module in modules])
            np.testing.assert_array_equal(words.codes, codes)
            np.testing.assert_array_equal(words.scales, scales)
            np.testing.assert_array_equal(words.divisors, divisors.view(np.uint32))


def test_a_bank_has_the_smallest_activation_divisor_of_its_experts(
    imported: Artifact, quantized: Quantized
):
    uses = {(use.parameter, use.input): use for use in imported.directory.uses}
    down = [quantized.divisors[module_of(2, f"experts.{e}.down_proj")][1] for e in range(E)]
    gate_up = [
        quantized.divisors[module_of(2, f"experts.{e}.{role}_proj")][1]
        for e in range(E)
        for role in ("gate", "up")
    ]
    moe = "text/layers/2/moe/"
    for expert in range(E):
        product = f"{moe}experts/{expert}/product"
        found = uses[f"{moe}experts/{expert}/down", product]
        assert found.activation_policy == "AllowA4"
        assert divisor(imported, found) == min(down)
        for role in ("gate", "up"):
            found = uses[f"{moe}experts/{expert}/{role}", "text/layers/2/ffn_input"]
            assert divisor(imported, found) == min(gate_up)
    alone = uses[f"{moe}shared/down", f"{moe}shared/product"]
    module = module_of(2, "shared_expert.down_proj")
    assert divisor(imported, alone) == quantized.divisors[module][1]


def divisor(artifact: Artifact, use: Any) -> np.float32:
    binding = use.auxiliaries["activation_input_divisor"]
    return np.float32(artifact.decode_object(binding.object))


def test_everything_else_is_as_in_the_groupwise_recipe(imported: Artifact, groupwise: Artifact):
    for name in imported.directory.bindings:
        is_imported = name.startswith("text/") and ("/moe/experts/" in name or "/shared/" in name)
        expected = "nvfp4" if is_imported else format_of(groupwise, name)
        assert format_of(imported, name) == expected
    policies = {
        use.activation_policy
        for use in imported.directory.uses
        if format_of(imported, use.parameter) != "nvfp4"
    }
    assert policies == {"A16Only"}


def test_imported_experts_run_as_their_formulas_say(imported: Artifact, quantized: Quantized):
    values = text_values(imported)
    for layer in range(LAYERS):
        prefix = f"text/layers/{layer}/moe/"
        for role in ("gate", "up", "down"):
            own = module_of(layer, f"shared_expert.{role}_proj")
            values[f"{prefix}shared/{role}"] = quantized.values(own)
            for expert in range(E):
                module = module_of(layer, f"experts.{expert}.{role}_proj")
                values[f"{prefix}experts/{expert}/{role}"] = quantized.values(module)
    np.testing.assert_allclose(
        logits_of(imported), oracle(imported, values), rtol=0, atol=10 * TOLERANCE
    )


def test_an_expert_that_is_not_there_is_named(
    convert_moe: Convert, tiny_moe: Path, quantized: Quantized, tmp_path: Path
):
    tensors = quantized.tensors("model.")
    del tensors["model.layers.2.mlp.experts.5.up_proj.weight_packed"]
    folder = write(tmp_path / "source", tensors)
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.experts\.5\.up_proj"):
        convert_moe(tiny_moe, "qwen3_6_35b_a3b_nvfp4", ("text",), quantized=folder)


@pytest.mark.parametrize("recipe", ["qwen3_6_35b_a3b", "qwen3_6_35b_a3b_nvfp4"])
def test_recipes_of_mixtures_refuse_a_dense_model(
    recipe: str, convert_moe: Convert, checkpoint: Path
):
    with pytest.raises(RecipeError, match="mixtures of experts"):
        convert_moe(checkpoint, recipe, ("text",))
