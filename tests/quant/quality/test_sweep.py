import fcntl
import json
import os

import pytest

from ninfer_format import open_artifact
from ninfer_format.commandline import run
from ninfer_quant.cli.sweep import sweep_lines
from ninfer_quant.pipeline.run import run_conversion
from ninfer_quant.quality import sweep_picture
from ninfer_quant.quality.measurement import measure
from ninfer_runtime.cli.perplexity import SCHEMA as PERPLEXITY_SCHEMA
from ninfer_runtime.cli.perplexity import command as perplexity_command

SIZES = ("--context", 64, "--chunks", 4)


@pytest.fixture(scope="module")
def short_text(tiny_text, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text(tiny_text.read_text(encoding="utf-8")[:1500], encoding="utf-8")
    return path


@pytest.fixture
def tasks_file(tiny_text):
    return tiny_text.with_name("tasks-eval.jsonl")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def tiny(model, recipe, sources):\n"
        "    recipe.assign('text/layers/*/mlp/*', format='q4_g64_fp16', method='grouped_absmax')\n"
    )
    return path


@pytest.fixture
def perplexity(capsys):
    """The document of ``ninfer-perplexity``."""

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(perplexity_command, PERPLEXITY_SCHEMA, arguments)
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def sweep(quant, checkpoint, short_text, tmp_path):
    def call(*arguments, recipes="qwen3_8_27b_q6"):
        return quant(
            *("sweep", checkpoint, "--recipes", recipes, "--text", short_text, *SIZES),
            *("--work-dir", tmp_path / "work", *arguments),
        )

    return call


def test_figures_are_those_of_the_single_commands(
    sweep, quant, recipe, short_text, tasks_file, tmp_path, perplexity
):
    code, out, _ = sweep(
        *("--tasks-file", tasks_file, "--tasks", 3, "--json", "-q"), recipes=f"{recipe}:tiny"
    )
    assert code == 0
    reference, row = json.loads(out)["rows"]
    work = tmp_path / "work"
    assert (reference["recipe"], row["recipe"]) == ("bf16", "mine:tiny")
    assert reference["divergence"] is None
    assert row["tasks"]["answered"] == 3
    artifact = work / row["artifact"]
    arguments = ("--text", str(short_text), *map(str, SIZES), "--json", "-q")
    measured = perplexity(
        str(artifact), *arguments, "--logits-reference", str(work / "reference.logits")
    )
    assert row["perplexity"] == pytest.approx(measured["perplexity"], rel=1e-9)
    assert row["divergence"] == pytest.approx(measured["divergence"], rel=1e-6)
    code, out, _ = quant("compare", work / "bf16.ninfer", artifact, "--json", "-q")
    total = json.loads(out)["total"]["b"]
    assert row["relative_frobenius"] == pytest.approx(total["relative_frobenius"])
    assert row["bits_per_weight"] == pytest.approx(total["bits_per_weight"])
    assert row["file_bytes"] == artifact.stat().st_size
    with open_artifact(artifact) as opened:
        assert row["file_bytes"] > sum(item.num_bytes for item in opened.directory.objects)


def test_a_finished_sweep_is_not_done_again(sweep, tmp_path, monkeypatch):
    code, first, _ = sweep("--json", "-q")
    assert code == 0
    monkeypatch.setattr("ninfer_quant.quality.sweep.run_conversion", None)
    monkeypatch.setattr("ninfer_quant.quality.sweep.measure", None)
    code, again, _ = sweep("--json", "-q")
    assert (code, again) == (0, first)


def test_an_interrupted_sweep_goes_on_where_it_was(sweep, tmp_path, monkeypatch):
    calls = []

    def interrupted(*arguments):
        calls.append("measure")
        if calls.count("measure") == 2:
            raise KeyboardInterrupt
        return measure(*arguments)

    def counted(*arguments):
        calls.append("convert")
        return run_conversion(*arguments)

    monkeypatch.setattr("ninfer_quant.quality.sweep.measure", interrupted)
    monkeypatch.setattr("ninfer_quant.quality.sweep.run_conversion", counted)
    assert sweep()[0] == 130
    assert calls == ["convert", "measure", "convert", "measure"]
    code, _, _ = sweep()
    assert code == 0
    assert calls[4:] == ["measure"]


def test_a_changed_recipe_is_measured_anew(sweep, recipe):
    _, before, _ = sweep("--json", "-q", recipes=f"{recipe}:tiny")
    recipe.write_text(recipe.read_text().replace("q4_g64_fp16", "q6_g64_fp16"))
    code, after, _ = sweep("--json", "-q", recipes=f"{recipe}:tiny")
    assert code == 0
    (same, old), (reference, new) = json.loads(before)["rows"], json.loads(after)["rows"]
    assert same == reference
    assert new["file_bytes"] > old["file_bytes"]
    assert new["divergence"]["mean_kl"] < old["divergence"]["mean_kl"]


def test_other_settings_need_another_folder(sweep, tmp_path):
    assert sweep()[0] == 0
    code, _, err = sweep("--chunks", 3)
    assert code == 2
    assert "other settings: chunks" in err
    descriptor = os.open(tmp_path / "work", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    code, _, err = sweep()
    os.close(descriptor)
    assert code == 2
    assert "another sweep is using the work folder" in err


def test_a_picture_is_drawn(sweep, tmp_path):
    picture = tmp_path / "sweep.svg"
    code, out, err = sweep("--picture", picture)
    assert code == 0
    assert f"wrote {picture}" in err
    assert picture.read_bytes().startswith(b"<?xml")
    assert out.splitlines()[0].split()[:2] == ["recipe", "MiB"]
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["bf16", "qwen3_8_27b_q6"]
    assert sweep("--picture", picture)[0] == 2
    assert sweep("--picture", picture, "--force")[0] == 0


def test_a_missing_matplotlib_is_said_before_the_work(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_picture, "find_spec", lambda name: None)
    code, _, err = sweep("--picture", tmp_path / "x.png")
    assert code == 5
    assert "needs the package matplotlib" in err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--recipes", ","), "names no recipe"),
        (("--recipes", "qwen3_8_27b,qwen3_8_27b"), "called 'qwen3_8_27b' too"),
        (("--recipes", "bf16"), "bf16 is always measured"),
        (("--recipes", "no_such_recipe"), "no_such_recipe"),
        (("--tasks", "3"), "--tasks is for --tasks-file"),
        (("--picture", "x.bmp"), "a picture is one of"),
        (("--force",), "--force is for --picture"),
        (("--source", "x"), "not NAME=PATH"),
    ],
)
def test_wrong_usage_ends_with_2(sweep, tmp_path, arguments, expected):
    code, out, err = sweep(*arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert not (tmp_path / "work").exists()


def test_the_table_has_a_column_for_tasks_only_with_tasks():
    row = {
        "recipe": "r",
        "file_bytes": 3 * 2**20,
        "bits_per_weight": 4.5,
        "relative_frobenius": 0.1,
        "perplexity": 9.5,
        "divergence": {"mean_kl": 0.01, "p99_kl": 0.2, "top1_agreement": 0.95},
        "tasks": None,
    }
    header, line = sweep_lines([row])
    assert "tasks" not in header
    assert line.split() == [
        "r",
        "3.00",
        "4.500",
        "0.10000",
        "9.5000",
        "0.01000",
        "0.2000",
        "95.00",
        "%",
    ]
    header, line = sweep_lines([row | {"tasks": {"correct": 3, "answered": 4}}])
    assert header.split()[-1] == "tasks"
    assert line.split()[-1] == "3/4"
