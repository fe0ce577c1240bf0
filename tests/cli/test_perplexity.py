import json
from pathlib import Path

import pytest

from ninfer_runtime.cli.perplexity import SCHEMA, command

DATA = Path(__file__).parents[1] / "data" / "tiny-model"


@pytest.fixture
def measure(invoke):
    return lambda *arguments, **options: invoke(command, SCHEMA, *arguments, **options)


@pytest.fixture(scope="module")
def short_text(tmp_path_factory):
    """The beginning of the held-out text: a bit more than six windows of 512 by 256 tokens."""
    path = tmp_path_factory.mktemp("text") / "short text.txt"
    text = (DATA / "heldout.txt").read_text(encoding="utf-8")
    path.write_text(text[:6600], encoding="utf-8")
    return str(path)


def test_windows_agree_with_the_reference(measure, bf16_model, short_text):
    done = measure(
        str(bf16_model), "--text", short_text, "--context", "512", "--stride", "256", "--json"
    )
    document = json.loads(done.out)
    golden = json.loads((DATA / "goldens" / "perplexity.json").read_text())["cover_256"]
    assert (document["context"], document["stride"]) == (512, 256)
    assert document["scored_tokens"] == document["tokens"] - 1
    assert document["windows"] == len(document["window_nll"]) >= 7
    # The last window ends where the text was cut.
    complete = document["window_nll"][:-1]
    assert complete == pytest.approx(golden["window_nll"][: len(complete)], abs=1e-4)


def test_the_reference_and_the_built_in_model_predict_equally_well(measure, bf16_model, tmp_path):
    golden = json.loads((DATA / "goldens" / "perplexity.json").read_text())["cover_256"]
    text = tmp_path / "first_windows.txt"
    text.write_text((DATA / "heldout.txt").read_text(encoding="utf-8")[:17_000], encoding="utf-8")
    arguments = ("--text", str(text), "--context", "512", "--stride", "256", "--json")
    exact = json.loads(measure(str(bf16_model), *arguments).out)
    built_in = json.loads(measure(*arguments).out)
    complete = exact["window_nll"][:-1]
    assert len(complete) >= 16
    # The mean of all windows is bound to 1e-5; each of them goes into it with less.
    expected = golden["window_nll"][: len(complete)]
    scored = [511] + [256] * (len(complete) - 1)
    difference = sum(
        number * (found - reference)
        for number, found, reference in zip(scored, complete, expected, strict=True)
    )
    assert abs(difference / sum(scored)) <= 1e-5
    assert built_in["windows"] == exact["windows"]
    assert built_in["perplexity"] == pytest.approx(exact["perplexity"], rel=0.03)


def test_the_document_is_complete(measure, short_text):
    done = measure("--text", short_text, "--context", "1024", "--json", "-q")
    document = json.loads(done.out)
    assert list(document) == [
        "schema",
        "ok",
        "model",
        "source",
        "context",
        "stride",
        "tokens",
        "scored_tokens",
        "windows",
        "mean_nll",
        "perplexity",
        "bits_per_token",
        "seconds",
        "tok_s",
        "window_nll",
    ]
    assert document["schema"] == "ninfer-perplexity/1"
    assert document["model"] == "tiny-qwen3_5"
    assert document["stride"] == 512
    assert document["tok_s"] > 0
    assert done.err == ""


def test_the_table_is_the_product_and_progress_is_not(measure, tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("In the beginning God created the heaven and the earth.")
    done = measure("--text", str(text), "--context", "8", "--stride", "4")
    assert done.code == 0
    names = [line[:16].strip() for line in done.out.splitlines()]
    assert names == [
        "tokens scored",
        "windows",
        "mean NLL",
        "perplexity",
        "bits per token",
        "speed",
    ]
    lines = done.err.splitlines()
    assert lines[0].startswith("no MODEL given")
    assert lines[1].startswith("scoring: 0 %")
    assert lines[-1].startswith("scoring: 100 %")


def test_ids_are_scored_as_they_are(measure, tmp_path):
    ids, text = tmp_path / "ids.json", tmp_path / "t.txt"
    text.write_text("In the beginning God created the heaven and the earth.")
    golden_first = json.loads((DATA / "goldens" / "perplexity.json").read_text())["first_ids"]
    ids.write_text(json.dumps(golden_first))
    done = measure("--ids", str(ids), "--context", "8", "--stride", "4", "--json")
    assert json.loads(done.out)["tokens"] == len(golden_first)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{}", "JSON array"),
        ("[1, 2", "not JSON"),
        ("[1, -1]", "position 1"),
        ("[1, 4096]", r"0..4095, found 4096"),
        ("[1, true]", "found True"),
        ("[1, 2.0]", "found 2.0"),
        (f"[1, {'1' * 5000}]", "found " + "1" * 40),
        ("[1]", "at least 2"),
        ("[]", "at least 2"),
    ],
)
def test_files_that_hold_no_ids_are_refused(measure, tmp_path, content, expected):
    ids = tmp_path / "ids.json"
    ids.write_text(content)
    done = measure("--ids", str(ids), "--context", "8")
    assert done.code == 2
    assert expected in done.err
    assert "scoring" not in done.err


def test_a_tilde_is_the_home_folder(measure, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.txt").write_text("In the beginning God created the heaven and the earth.")
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    assert measure("--text", "~/t.txt", "--context", "8").code == 0
    assert measure("--ids", "~/ids.json", "--context", "8").code == 0


def test_text_that_is_not_utf8_is_refused(measure, tmp_path):
    text = tmp_path / "t.txt"
    text.write_bytes(b"abc\xff")
    done = measure("--text", str(text), "--context", "8")
    assert done.code == 2
    assert f"{text}: not UTF-8: invalid start byte at byte 3" in done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "exactly one of --text and --ids"),
        (("--text", "TEXT", "--ids", "TEXT"), "exactly one of --text and --ids"),
        (("--text", "TEXT", "--context", "1"), "context"),
        (("--text", "TEXT", "--context", "8", "--stride", "8"), "stride 8 must be in 1..7"),
        (("--text", "TEXT", "--context", "8", "--stride", "0"), "stride"),
        (("--text", "TEXT", "--context", "32769"), "--context 32769 is outside 1..32768"),
        (("--text", "no-such-file.txt"), "no-such-file.txt"),
    ],
)
def test_wrong_usage_ends_with_2(measure, short_text, arguments, expected):
    done = measure(*(short_text if argument == "TEXT" else argument for argument in arguments))
    assert done.code == 2
    assert done.out == ""
    assert expected in done.err


def test_a_score_that_is_not_finite_ends_with_1(measure, tmp_path, monkeypatch):
    def broken(self, token_ids, first_target, public_tokens):
        import numpy as np

        return np.full(len(token_ids) - first_target, np.nan, np.float32)

    monkeypatch.setattr("ninfer_runtime.engine.model_program.ModelProgram.score", broken)
    text = tmp_path / "t.txt"
    text.write_text("In the beginning God created the heaven and the earth.")
    done = measure("--text", str(text), "--context", "8", "--json")
    assert done.code == 1
    assert "window 0, position 1" in done.err
    assert json.loads(done.out)["ok"] is False
