import json
import math
from pathlib import Path

import pytest

from ninfer_runtime.cli.perplexity import SCHEMA, command

DATA = Path(__file__).parents[1] / "data" / "tiny-model"
SIZES = ("--context", "64", "--chunks", "6")


@pytest.fixture
def measure(invoke):
    return lambda *arguments, **options: invoke(command, SCHEMA, *arguments, **options)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a text.txt"
    path.write_text((DATA / "heldout.txt").read_text(encoding="utf-8")[:1900], encoding="utf-8")
    return str(path)


@pytest.fixture
def reference(measure, bf16_model, text, tmp_path):
    path = tmp_path / "bf16.logits"
    done = measure(str(bf16_model), "--text", text, *SIZES, "--logits-out", str(path))
    assert done.code == 0
    return path


def test_a_quantized_model_differs_from_its_original(measure, bf16_model, text, reference):
    done = measure("--text", text, *SIZES, "--logits-reference", str(reference), "--json")
    document = json.loads(done.out)
    divergence = document["divergence"]
    assert list(divergence) == [
        "positions",
        "mean_kl",
        "median_kl",
        "p99_kl",
        "max_kl",
        "top1_agreement",
        "rms_probability_difference",
    ]
    assert document["scored_tokens"] == divergence["positions"] == 6 * 32
    assert document["windows"] == len(document["window_nll"]) == 6
    assert 1e-3 < divergence["mean_kl"] < 0.05
    assert divergence["median_kl"] < divergence["p99_kl"] < divergence["max_kl"]
    assert 0.8 < divergence["top1_agreement"] < 1
    itself = measure(
        str(bf16_model), "--text", text, *SIZES, "--logits-reference", str(reference), "--json"
    )
    divergence = json.loads(itself.out)["divergence"]
    assert divergence["max_kl"] < 2e-6
    assert divergence["top1_agreement"] == 1


def test_windows_are_scored_as_one_by_one(measure, bf16_model, text, tmp_path):
    """Every window is what a stream of its tokens alone is, second half only."""
    out = str(tmp_path / "l")
    done = measure(str(bf16_model), "--text", text, *SIZES, "--logits-out", out, "--json")
    document = json.loads(done.out)
    assert "divergence" not in document
    # With windows of 64 by 32 the plain measure scores the same second half in every other window.
    plain = json.loads(
        measure(str(bf16_model), "--text", text, "--context", "64", "--stride", "32", "--json").out
    )
    # A plain window scores targets 32..63 of its tokens, from its second window on.
    assert document["window_nll"][1:] == pytest.approx(plain["window_nll"][2:12:2], abs=1e-6)
    assert document["perplexity"] == pytest.approx(math.exp(document["mean_nll"]))


def test_the_table_shows_the_divergence(measure, text, reference):
    done = measure("--text", text, *SIZES, "--logits-reference", str(reference))
    names = [line[:16].strip() for line in done.out.splitlines()]
    assert names[-6:] == [
        "KL mean",
        "KL median",
        "KL 99 %",
        "KL maximum",
        "same top token",
        "RMS Δp",
    ]


def test_a_reference_of_another_text_or_window_ends_with_3(measure, text, reference, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(Path(text).read_text(encoding="utf-8")[5:], encoding="utf-8")
    against = ("--logits-reference", str(reference))
    for arguments, expected in [
        (("--text", str(other), *SIZES), "another text"),
        (("--text", text, "--context", "32", "--chunks", "6"), "windows of 64 tokens, not 32"),
        (("--text", text, "--context", "64", "--chunks", "5"), "6 windows, not 5"),
    ]:
        done = measure(*arguments, *against)
        assert done.code == 3
        assert expected in done.err
    done = measure("--text", text, *SIZES, "--logits-reference", text)
    assert done.code == 3


def test_an_output_is_replaced_only_with_force(measure, text, reference):
    before = reference.read_bytes()
    arguments = ("--text", text, "--context", "64", "--chunks", "1", "--logits-out")
    assert measure(*arguments, str(reference)).code == 2
    assert reference.read_bytes() == before
    assert measure(*arguments, str(reference), "--force").code == 0
    assert len(reference.read_bytes()) < len(before)
    assert measure(*arguments, text, "--force").code == 2


def test_a_failure_leaves_no_output(measure, text, tmp_path, monkeypatch):
    def broken(self, token_ids, first_target, public_tokens):
        import numpy as np

        yield np.full((len(token_ids) - first_target, public_tokens), np.inf, np.float32)

    monkeypatch.setattr("ninfer_runtime.engine.model_program.ModelProgram.target_logits", broken)
    done = measure("--text", text, *SIZES, "--logits-out", str(tmp_path / "out"))
    assert done.code == 1
    assert "window 0, position 32" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--ids", "TEXT", "--logits-out", "x"), "need --text"),
        (("--text", "TEXT", "--chunks", "1"), "--chunks is for --logits-out"),
        (("--text", "TEXT", "--force"), "--force is for --logits-out"),
        (("--text", "TEXT", "--context", "3", "--logits-out", "x"), "at least 4"),
        (("--text", "TEXT", "--context", "64", "--stride", "16", "--logits-out", "x"), "stride"),
        (("--text", "TEXT", "--context", "4096", "--logits-out", "x"), "at least 4096"),
        (("--text", "TEXT", "--logits-reference", "no-such-file"), "no-such-file"),
    ],
)
def test_wrong_usage_ends_with_2(measure, text, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    done = measure(*(text if argument == "TEXT" else argument for argument in arguments))
    assert done.code == 2
    assert expected in done.err
    assert list(tmp_path.iterdir()) == []
