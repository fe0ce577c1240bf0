"""Corpora that a model has written itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import UsageError
from ninfer_quant.calibration import self_sampling
from ninfer_quant.calibration.model import CalibratedModel
from ninfer_quant.calibration.self_sampling import SampledRow
from ninfer_quant.cli.quant import command

Sample = Callable[..., Result]
COLS = 96


@pytest.fixture
def sample(bf16_model: Path, tmp_path: Path) -> Sample:
    """``sample(out, …)``: let the tiny model go on with four passages."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("A short walk along the river. " * 30, encoding="utf-8")

    def run(out: Path, *options: str, model: Path = bf16_model) -> Result:
        line = ["calibrate", str(model), "--sample", "--corpus", str(corpus), "--out", str(out)]
        line += ["--rows", "4", "--cols", str(COLS), *options]
        return CliRunner().invoke(command, line)

    return run


def tensors(path: Path) -> dict[str, np.ndarray]:
    file = SafetensorsCheckpoint(path)
    return {name: file.read(name).reshape(file.info(name).shape) for name in file.names}


def test_rows_hold_what_was_given_and_then_what_was_sampled(
    sample: Sample, model: CalibratedModel, tmp_path: Path
):
    out = tmp_path / "trace.safetensors"
    result = sample(out)
    assert result.exit_code == 0, result.output
    found = tensors(out)
    ids, lengths, prompts = (found[name] for name in ("input_ids", "lengths", "prompt_lengths"))
    assert len(ids) == len(lengths) == 4
    assert (prompts < lengths).all()
    assert lengths.max() <= COLS
    public, stop = model.frontend.tokenizer.public_tokens, model.frontend.stop_token_ids
    for row, length, prompt in zip(ids, lengths, prompts, strict=True):
        assert row.max() < public
        text = b"".join(map(model.frontend.tokenizer.token_bytes, row[:prompt].tolist())).decode()
        assert "Continue this passage:" in text
        assert text.count("river") > 1
        assert length == COLS or row[length - 1] in stop
    # Rows have seeds of their own.
    assert (
        len(
            {
                bytes(row[prompt:length])
                for row, length, prompt in zip(ids, lengths, prompts, strict=True)
            }
        )
        > 1
    )


def test_the_same_command_samples_the_same(sample: Sample, tmp_path: Path):
    for name in ("a", "b"):
        assert sample(tmp_path / name).exit_code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_sampled_rows_are_a_corpus(sample: Sample, checkpoint: Path, tmp_path: Path):
    trace, out = tmp_path / "trace.safetensors", tmp_path / "c.safetensors"
    assert sample(trace).exit_code == 0
    line = ["calibrate", str(checkpoint), "--corpus", str(trace), "--cols", str(COLS)]
    result = CliRunner().invoke(command, [*line, "--no-hessians", "--json", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert f'"tokens": "{tensors(trace)["lengths"].sum()}"' in result.stdout


def test_what_was_sampled_before_an_interruption_is_kept(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert sample(tmp_path / "whole").exit_code == 0
    draw = self_sampling._sample
    drawn: list[int] = []

    def draw_at_most_two(*arguments) -> SampledRow:
        if len(drawn) == 2:
            raise KeyboardInterrupt
        drawn.append(1)
        return draw(*arguments)

    out = tmp_path / "trace"
    monkeypatch.setattr(self_sampling, "_sample", draw_at_most_two)
    assert sample(out).exit_code != 0
    assert not out.exists()
    drawn.clear()
    assert sample(out).exit_code == 0
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / "trace.work").exists()


def test_what_cannot_be_sampled_is_refused(sample: Sample, checkpoint: Path, tmp_path: Path):
    for message, result in (
        ("--sample runs an artifact", sample(tmp_path / "a", model=checkpoint)),
        ("a row has 8 tokens, and a prompt alone", sample(tmp_path / "b", "--cols", "8")),
        ("the model was made for", sample(tmp_path / "c", "--cols", "1000000")),
    ):
        assert isinstance(result.exception, UsageError)
        assert message in str(result.exception)
    assert not any(path.suffix == ".work" or path.name in "abc" for path in tmp_path.iterdir())


@pytest.mark.parametrize("options", [("--no-hessians",), ("--on-nonfinite", "exclude")])
def test_options_of_a_calibration_are_refused(
    sample: Sample, tmp_path: Path, options: tuple[str, ...]
):
    result = sample(tmp_path / "a", *options)
    assert isinstance(result.exception, UsageError)
    assert "means nothing with --sample" in str(result.exception)
