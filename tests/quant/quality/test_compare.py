import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ninfer_format import SafetensorsCheckpoint, open_artifact

NAME = "text/layers/3/mlp/down"
TENSOR = "model.language_model.layers.3.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def artifact(convert, tmp_path_factory):
    return convert(tmp_path_factory.mktemp("q") / "q.ninfer", components=("text",))


def rows_of(document):
    return {row["parameter"]: row for row in document["parameters"]}


def errors_of(values, stored):
    """The figures from their definitions, in exact sums."""
    values, stored = values.ravel().tolist(), stored.ravel().tolist()
    noise = math.fsum((s - v) ** 2 for v, s in zip(values, stored, strict=True))
    signal = math.fsum(v * v for v in values)
    product = math.fsum(v * s for v, s in zip(values, stored, strict=True))
    norm = math.sqrt(signal) * math.sqrt(math.fsum(s * s for s in stored))
    return {
        "relative_frobenius": math.sqrt(noise / signal),
        "sqnr_db": 10 * math.log10(signal / noise),
        "max_abs_error": max(abs(s - v) for v, s in zip(values, stored, strict=True)),
        "cosine": product / norm,
        "cosine_distance": 1 - product / norm,
    }


def test_a_checkpoint_and_an_artifact(quant, checkpoint, artifact):
    code, out, _ = quant("compare", checkpoint, artifact, "--json", "-q")
    document = json.loads(out)
    assert code == 0
    row = rows_of(document)[NAME]
    values = SafetensorsCheckpoint(checkpoint).read(TENSOR).astype(np.float64)
    with open_artifact(artifact) as opened:
        stored = opened.read_rows(NAME, (0, 256), (256, 768)).astype(np.float64)
        record = opened.record(opened.parts(NAME)[0].object)
    for name, expected in errors_of(values, stored).items():
        assert row["b"][name] == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert row["b"]["bits_per_weight"] == 8 * record.num_bytes / (256 * 768) == 5.25
    assert row["a"] == {"format": "bfloat16", "bits_per_weight": 16}
    assert (row["shape"], row["rows"]) == ([256, 768], 256)
    # The conversion report measured the same while it wrote.
    report = json.loads(Path(f"{artifact}.conversion.json").read_text())
    for measured in report["statistics"]:
        row = rows_of(document)[measured["parameter"]]["b"]
        for name in ("relative_frobenius", "max_abs_error", "sqnr_db", "bits_per_weight"):
            exact = measured[name]
            assert row[name] == (exact if exact is None else pytest.approx(exact, rel=1e-6))
    # Only the checkpoint has these.
    assert any(name.startswith("vision/") for name in document["only_some"])
    assert not any(name.startswith("text/") for name in document["only_some"])


def test_the_total_counts_every_element_once(quant, bf16_model, artifact):
    code, out, _ = quant("compare", bf16_model, artifact, "--json", "-q")
    document = json.loads(out)
    assert code == 0
    noise = signal = bits = elements = 0.0
    with open_artifact(bf16_model) as first, open_artifact(artifact) as second:
        for row in document["parameters"]:
            count = first.parameter_elements(row["parameter"])
            values, stored = (
                opened.read_rows(row["parameter"], (0, count), (count,)).astype(np.float64)
                for opened in (first, second)
            )
            noise += float(np.square(values - stored).sum())
            signal += float(np.square(values).sum())
            bits += row["b"]["bits_per_weight"] * count
            elements += count
    total = document["total"]
    assert total["b"]["relative_frobenius"] == pytest.approx(math.sqrt(noise / signal), rel=1e-6)
    assert total["b"]["bits_per_weight"] == pytest.approx(bits / elements)
    assert 15.9 < total["a"]["bits_per_weight"] < 16.1


def test_both_sides_against_a_reference(quant, checkpoint, bf16_model, artifact):
    arguments = ("--reference", checkpoint, "--select", NAME, "--json", "-q")
    code, out, _ = quant("compare", bf16_model, artifact, *arguments)
    (row,) = json.loads(out)["parameters"]
    assert code == 0
    assert row["a"]["relative_frobenius"] == 0
    assert row["a"]["sqnr_db"] is None
    assert row["a"]["cosine"] == 1
    assert row["b"]["relative_frobenius"] > 0.01
    assert "cosine" not in row["reference"]


def test_some_rows_stand_for_all(quant, checkpoint, artifact):
    code, out, _ = quant(
        "compare", checkpoint, artifact, "--select", NAME, "--rows", 5, "--json", "-q"
    )
    (row,) = json.loads(out)["parameters"]
    assert (code, row["rows"]) == (0, 5)
    values = SafetensorsCheckpoint(checkpoint).read(TENSOR).reshape(256, 768)
    rows = [0, 51, 102, 153, 204]
    with open_artifact(artifact) as opened:
        stored = opened.read_rows(NAME, np.array(rows), (256, 768))
    expected = errors_of(values[rows].astype(np.float64), stored.astype(np.float64))
    assert row["b"]["relative_frobenius"] == pytest.approx(expected["relative_frobenius"], rel=1e-6)


@pytest.mark.parametrize(
    ("metric", "below", "above"),
    [
        ("relative_frobenius", 0.5, 0.05),
        ("max_abs_error", 1, 1e-4),
        ("cosine_distance", 0.1, 1e-5),
        ("bits_per_weight", 33, 6),
    ],
)
def test_a_limit_decides_the_exit_code(quant, checkpoint, artifact, metric, below, above):
    arguments = ("compare", checkpoint, artifact, "--json", "-q", "--fail-above")
    assert quant(*arguments, f"{metric}={below}")[0] == 0
    code, out, err = quant(*arguments, f"{metric}={above}")
    document = json.loads(out)
    assert (code, document["ok"], document["error"]["code"]) == (1, False, "too_different")
    assert f"{metric} is above {above:g}" in err
    assert document["parameters"]


def test_the_table_has_a_line_for_every_parameter(quant, checkpoint, artifact):
    code, out, err = quant("compare", checkpoint, artifact, "--select", "text/layers/3/mlp/*")
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == [
        "parameter",
        *(f"text/layers/3/mlp/{name}" for name in ("gate", "up", "down")),
        "all",
    ]
    assert "comparing: 100 %" in err


def test_values_that_are_not_finite_are_refused(
    quant, checkpoint_copy, artifact, write_safetensors
):
    path = checkpoint_copy / "model.safetensors"
    stored = SafetensorsCheckpoint(path)
    tensors = {
        name: stored.read(name).reshape(stored.info(name).shape).copy() for name in stored.names
    }
    tensors[TENSOR][3, 7] = ml_dtypes.bfloat16(np.nan)
    write_safetensors(path, tensors)
    code, _, err = quant("compare", checkpoint_copy, artifact)
    assert code == 3
    assert f"parameter {NAME}: element {3 * 768 + 7} is nan" in err


def test_models_of_other_sizes_are_refused(quant, checkpoint, tiny_moe):
    code, _, err = quant("compare", checkpoint, tiny_moe)
    assert code == 3
    assert "not versions of one model" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--select", "nothing/*"), "'nothing/*' matches no parameter"),
        (("--fail-above", "sqnr=3"), "unknown metric 'sqnr'"),
        (("--fail-above", "max_abs_error=nan"), "'nan' is not a number"),
        (("--fail-above", "max_abs_error"), "is not a number"),
        (("--rows", "0"), "--rows"),
    ],
)
def test_wrong_usage_ends_with_2(quant, checkpoint, artifact, arguments, expected):
    code, out, err = quant("compare", checkpoint, artifact, *arguments)
    assert (code, out) == (2, "")
    assert expected in err
