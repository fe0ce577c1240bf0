import json
import runpy

import numpy as np
import pytest

from ninfer_format import SafetensorsCheckpoint, codec_for, open_artifact
from ninfer_format.errors import UsageError
from ninfer_quant.calibration.records import InputStatistics, write_calibration
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.prepare import prepare
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.quality.bit_plan import BitPlanner, PlanOptions
from ninfer_quant.quality.planned_recipe import recipe_text
from ninfer_quant.quality.sensitivity import FORMATS, measure_sensitivity
from ninfer_quant.recipes.api import Recipe
from ninfer_quant.recipes.loading import load_recipe

Q_FORMATS = ("q4_g64_fp16", "q6_g64_fp16", "bf16")
DOWN = "text/layers/3/mlp/down"


@pytest.fixture(scope="module")
def planner(checkpoint):
    return BitPlanner(PlanOptions(checkpoint, rows=128))


@pytest.fixture(scope="module")
def sensitivities(planner):
    return planner.measure(lambda steps, item: None)


@pytest.fixture
def planned(planner, sensitivities):
    """Plan the tiny model for a size without measuring it again."""
    return lambda target_bpw: planner.plan(sensitivities, target_bpw)


def tensor_bytes(path):
    with open_artifact(path) as artifact:
        tensors = artifact.directory.tensors
        return sum(tensor.num_bytes for tensor in tensors), sum(
            tensor.elements for tensor in tensors
        )


@pytest.mark.parametrize("target", [4.6, 5.0, 6.4])
def test_the_artifact_has_exactly_the_planned_size(planned, checkpoint, tmp_path, target):
    plan = planned(target)
    recipe = tmp_path / "planned.py"
    recipe.write_text(recipe_text(plan, target), encoding="utf-8")
    conversion = plan_conversion(ConversionRequest(checkpoint, load_recipe(str(recipe))))
    output = tmp_path / "planned.ninfer"
    run_conversion(
        conversion,
        RunOptions(output, verify="none", writes_report=False),
        lambda num_bytes, item: None,
    )
    assert tensor_bytes(output) == (plan.num_bytes, plan.elements)
    assert target - 0.2 < plan.bits_per_weight <= target
    formats = {weight.target.format for weight in conversion.preparation.weights}
    assert formats >= {item.chosen.format for item in plan.objects}
    # What is planned as one object is one.
    parents = {weight.request.parameter_names for weight in conversion.preparation.weights}
    assert {item.sensitivity.parameters for item in plan.objects} <= parents


def test_more_bits_are_never_worse(planned):
    errors = [planned(target).error for target in (4.4, 4.7, 5.0, 5.5, 6.5, 9.0, 16.5)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0


def test_errors_of_layers_weigh_less_than_those_of_the_head(planned):
    plan = planned(5.0)
    weights = {item.sensitivity.parameters[0]: item.weight for item in plan.objects}
    assert weights["text/output_head"] == 1
    assert weights["text/token_embedding"] == weights[DOWN] == 1 / 17
    assert plan.error == pytest.approx(
        sum(item.weight * item.chosen.error for item in plan.objects)
    )
    bits = {
        item.sensitivity.parameters[0]: item.chosen.num_bytes / np.prod(item.sensitivity.shape)
        for item in plan.objects
    }
    assert bits["text/output_head"] == max(bits.values())


def test_sizes_are_those_of_the_codecs(sensitivities):
    for item in sensitivities:
        for candidate in item.candidates:
            layout = {"nvfp4": "block_scale_k16_m128x4_v1", "bf16": "contiguous_le_v1"}.get(
                candidate.format, "row_split_k128_v1"
            )
            geometry = codec_for(candidate.format, layout, item.shape).geometry
            assert candidate.num_bytes == geometry.num_bytes


def test_packed_parameters_stay_together_and_controls_are_not_planned(sensitivities):
    names = [item.parameters for item in sensitivities]
    assert tuple(f"text/layers/3/attention/{x}" for x in ("query", "key", "gate", "value")) in names
    assert ("text/token_embedding",) in names
    assert ("text/output_head",) in names
    every = {name for group in names for name in group}
    assert not any(name.endswith(("a_projection", "b_projection", "norm")) for name in every)


def rows_of_down(checkpoint, count):
    stored = SafetensorsCheckpoint(checkpoint)
    name = "model.language_model.layers.3.mlp.down_proj.weight"
    values = stored.read(name).astype(np.float32).reshape(256, 768)
    return values[[index * 256 // count for index in range(count)]]


def best_of_scales(values, qmax, qmin, group=64):
    """Any scale in a dense grid, for every group: what no quantizer can be much better than."""
    blocks = values.reshape(-1, group).astype(np.float64)
    largest = np.abs(blocks).max(axis=1, keepdims=True) / qmax
    best = np.full(len(blocks), np.inf)
    for factor in np.linspace(0.6, 1.05, 91):
        scale = (largest * factor).astype(np.float16).astype(np.float64)
        codes = np.clip(np.rint(blocks / scale), qmin, qmax)
        best = np.minimum(best, np.square(codes * scale - blocks).sum(axis=1))
    return best.sum() / np.square(blocks).sum()


@pytest.mark.parametrize(
    ("format_name", "qmax", "qmin"),
    [("q4_g64_fp16", 7, -8), ("q5_g64_fp16", 15, -16), ("q6_g64_fp16", 31, -32)],
)
def test_errors_are_those_of_the_best_scales(checkpoint, sensitivities, format_name, qmax, qmin):
    item = next(item for item in sensitivities if item.parameters == (DOWN,))
    found = next(c for c in item.candidates if c.format == format_name).error
    expected = best_of_scales(rows_of_down(checkpoint, 128), qmax, qmin)
    assert found == pytest.approx(expected, rel=0.05)


@pytest.fixture
def calibration(tmp_path):
    """Inputs of one projection, strongly correlated and of very different size."""
    generator = np.random.default_rng(9)
    inputs = generator.normal(size=(900, 768)) * np.geomspace(0.01, 10, 768)
    inputs += generator.normal(size=(900, 1))
    hessian = (inputs.T @ inputs / 900).astype(np.float32)
    path = tmp_path / "calibration.safetensors"
    statistics = InputStatistics(
        np.float32(np.abs(inputs).max()), hessian.diagonal().copy(), hessian
    )
    write_calibration(path, {"text/layers/3/mlp/product": statistics}, {})
    return path, hessian.astype(np.float64)


@pytest.mark.parametrize("metric", ["diagonal", "hessian"])
def test_errors_are_weighted_by_the_inputs(checkpoint, calibration, monkeypatch, metric):
    path, hessian = calibration
    options = PlanOptions(checkpoint, formats=Q_FORMATS, metric=metric, calibration=path, rows=128)
    planner = BitPlanner(options)
    chosen = [w for w in planner._weights if w.request.parameter_names == (DOWN,)]
    others = [w for w in planner._weights if "text/token_embedding" in w.request.parameter_names]
    monkeypatch.setattr(planner, "_weights", chosen + others)
    stored: dict[tuple[str, tuple[int, int]], np.ndarray] = {}

    def keep(target, inputs, method, parameters, device):
        values = quantized(target, inputs, method, parameters, device)
        stored[target.format, target.shape] = values
        return values

    from ninfer_quant.quality import sensitivity

    quantized = sensitivity._quantized
    monkeypatch.setattr(sensitivity, "_quantized", keep)
    down, embedding = planner.measure(lambda steps, item: None)
    assert (down.metric, embedding.metric) == (metric, "plain")
    moments = hessian if metric == "hessian" else np.diag(hessian.diagonal())
    values = rows_of_down(checkpoint, 128).astype(np.float64)
    for candidate in down.candidates[:2]:
        error = stored[candidate.format, (128, 768)] - values
        expected = np.trace(error @ moments @ error.T) / np.trace(values @ moments @ values.T)
        assert candidate.error == pytest.approx(expected, rel=1e-5)
        assert candidate.method == ("grouped_gptq" if metric == "hessian" else "grouped_mse")
    assert {candidate.method for candidate in embedding.candidates} == {
        "grouped_mse",
        "cast_direct",
    }


def test_a_recipe_can_be_read_and_says_what_was_chosen(planned, tmp_path):
    plan = planned(4.8)
    text = recipe_text(plan, 4.8)
    path = tmp_path / "plan.py"
    path.write_text(text, encoding="utf-8")
    assignments = runpy.run_path(str(path))["ASSIGNMENTS"]
    assert [(entry[0], entry[1], tuple(entry[3])) for entry in assignments] == [
        (item.chosen.format, item.chosen.method, item.sensitivity.parameters)
        for item in plan.objects
    ]
    assert max(map(len, text.splitlines())) <= 100


def test_the_command_prints_a_table_and_writes_a_recipe(quant, checkpoint, tmp_path):
    out = tmp_path / "r.py"
    arguments = ("plan", checkpoint, "--target-bpw", 5, "--rows", 128, "--out", out)
    formats = ("--formats", ",".join(Q_FORMATS))
    code, table, err = quant(*arguments, *formats)
    assert code == 0
    assert table.splitlines()[0].split()[0] == "parameters"
    assert "bits per weight of 5" in table
    assert f"wrote {out}" in err
    assert quant(*arguments, *formats)[0] == 2
    code, printed, _ = quant(*arguments, *formats, "--force", "--json", "-q")
    document = json.loads(printed)
    assert (code, document["recipe"]) == (0, str(out))
    assert document["bits_per_weight"] <= 5
    assert document["tensor_bytes"] == document["fixed_bytes"] + sum(
        item["bytes"] for item in document["objects"]
    )
    assert {item["format"] for item in document["objects"]} <= set(Q_FORMATS)
    for item in document["objects"]:
        assert [candidate["format"] for candidate in item["candidates"]] == list(Q_FORMATS)


def test_a_target_below_the_smallest_formats_names_what_is_possible(planned):
    with pytest.raises(UsageError, match=r"the model has (4\.\d+) bits per weight") as caught:
        planned(3.0)
    least = float(str(caught.value).rsplit("has ", 1)[1].split()[0])
    assert planned(least + 1e-4).bits_per_weight == pytest.approx(least, abs=1e-3)


@pytest.mark.parametrize("shape", [(100, 64), (128, 48)])
def test_a_format_that_cannot_store_a_matrix_is_no_candidate(fake_model, shape):
    model = fake_model({"text/a": shape}, inputs={"text/a": ("text/x",)})
    (weight,) = prepare(Recipe(model), rows_per_chunk=512).weights
    found = measure_sensitivity(
        weight, FORMATS, metric="plain", calibration=None, rows=128, device="cpu"
    )
    assert [item.format for item in found.candidates] == [
        name for name in FORMATS if name != "nvfp4"
    ]
    errors = [item.error for item in found.candidates]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--metric", "hessian"), "--metric hessian needs --calibration"),
        (("--formats", "q3"), "'q3' cannot be planned"),
        (("--force",), "--force is for --out"),
        (("--target-bpw", "0"), "--target-bpw"),
        (("--target-bpw", "1", "--formats", "q8_g32_fp16"), "too small"),
    ],
)
def test_wrong_usage_ends_with_2(quant, checkpoint, arguments, expected):
    code, out, err = quant("plan", checkpoint, "--target-bpw", 5, "--rows", 128, *arguments)
    assert (code, out) == (2, "")
    assert expected in err
