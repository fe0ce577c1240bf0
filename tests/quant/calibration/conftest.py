"""The tiny model, opened for calibration, and a short corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ninfer_quant.calibration.corpus_rows import CorpusRows
from ninfer_quant.calibration.job import CalibrationOptions, calibrate
from ninfer_quant.calibration.model import CalibratedModel, open_model

Calibrate = Callable[..., Path]


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Iterator[CalibratedModel]:
    with open_model(checkpoint) as opened:
        yield opened


@pytest.fixture(scope="session")
def corpus(model: CalibratedModel) -> CorpusRows:
    """Three rows of different lengths."""
    ids = model.frontend.tokenizer.encode("The first of May is a day off. " * 12)
    rows = (ids[:40], ids[40:60], ids[60:93])
    return CorpusRows("short", tuple(np.array(row, np.int32) for row in rows))


@pytest.fixture(scope="session")
def calibrated(
    model: CalibratedModel, corpus: CorpusRows, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A calibration of the tiny model."""
    path = tmp_path_factory.mktemp("calibrated") / "c.safetensors"
    calibrate(model, corpus, CalibrationOptions(path), lambda steps, item: None)
    return path
