"""Commands on a GPU."""

from __future__ import annotations

import json

import pytest

from ninfer_runtime.cli import bench, generate, perplexity

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.mark.parametrize("more", [(), ("--no-cuda-graph",), ("--kv-dtype", "int8")])
def test_the_built_in_model_answers_as_on_the_cpu(invoke, more):
    question = ("--prompt", "What is the capital of France?", "--greedy")
    answers = {
        backend: invoke(
            generate.command, generate.SCHEMA, *question, "--backend", backend, *options
        )
        for backend, options in (("cpu", ()), ("cuda", more))
    }
    assert answers["cuda"].code == 0, answers["cuda"].err
    assert answers["cuda"].out == answers["cpu"].out != ""


def test_perplexity_is_measured_on_a_gpu(invoke, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 20)
    arguments = ("--text", str(text), "--context", "64", "--json")
    cpu, cuda = (
        json.loads(invoke(perplexity.command, perplexity.SCHEMA, *arguments, *backend).out)
        for backend in (("--backend", "cpu"), ("--backend", "cuda"))
    )
    assert cuda["scored_tokens"] == cpu["scored_tokens"]
    assert cuda["perplexity"] == pytest.approx(cpu["perplexity"], rel=0.02)


def test_the_built_in_model_is_measured_and_profiled(invoke):
    arguments = ("-p", "64", "-n", "4", "--concurrency", "1,2", "-r", "1", "--profile", "--json")
    result = invoke(bench.command, bench.SCHEMA, "--backend", "cuda", *arguments)
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert [row["test"] for row in document["tests"]] == ["pp64", "tg4", "tg4 x2"]
    assert all(row["tok_s"] > 0 for row in document["tests"])
    assert document["tests"][1]["roofline_tok_s"] > 0
    profiles = document["profiles"]
    assert list(profiles) == ["chunk of pp64", "step of tg4", "step of tg4 x2"]
    for found in profiles.values():
        ops = {row["op"] for row in found["kernels"]}
        assert {"linear", "gated_delta_net", "paged_attention"} <= ops
        assert all(row["us"] > 0 for row in found["kernels"])
        assert found["us"] > 0
    assert "sample" in {row["op"] for row in profiles["step of tg4"]["kernels"]}


def test_an_op_is_measured(invoke):
    result = invoke(bench.command, bench.SCHEMA, "--ops", "sample", "-r", "1", "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)["ops"]
    kinds = ("greedy", "drawn", "drawn with penalty")
    assert [row["case"] for row in rows] == [f"R={R} {kind}" for R in (1, 8) for kind in kinds]
    assert all(row["us"] > 0 for row in rows)
