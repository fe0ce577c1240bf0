import json
from dataclasses import replace

import numpy as np
import pytest

from ninfer_format.errors import CheckpointError
from ninfer_runtime.eval.divergence import Divergence, log_softmax
from ninfer_runtime.eval.logits_file import LogitsReference, LogitsWriter, describe_text

V, CONTEXT, WINDOWS = 300, 8, 3
IDS = list(range(30))


@pytest.fixture
def scored():
    return describe_text(b"text", IDS, vocabulary=V, context=CONTEXT, windows=WINDOWS)


@pytest.fixture
def log_probabilities():
    return log_softmax(np.random.default_rng(6).normal(size=(12, V)) * 6)


@pytest.fixture
def path(tmp_path, scored, log_probabilities):
    path = tmp_path / "some logits"
    with path.open("wb") as file:
        writer = LogitsWriter(file, scored, "Änderung")
        writer.add(log_probabilities[:5])
        writer.add(log_probabilities[5:])
        writer.finish()
    return path


def test_what_is_written_is_read(path, scored, log_probabilities):
    reference = LogitsReference(path)
    assert (reference.scored, reference.model) == (scored, "Änderung")
    values, top = reference.read(3, 9)
    assert values == pytest.approx(log_probabilities[3:9], rel=2**-11)
    assert top.tolist() == [int(row.argmax()) for row in log_probabilities[3:9]]


def test_the_layout_is_what_it_says(path, log_probabilities):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header["log_probabilities"] == {
        "dtype": "F16",
        "shape": [12, V],
        "data_offsets": [0, 12 * V * 2],
    }
    words = np.frombuffer(data, "<f2", 12 * V, 8 + length)
    assert words.tobytes() == log_probabilities.astype("<f2").tobytes()


def test_rounding_hides_little_divergence(path, log_probabilities):
    divergence = Divergence()
    divergence.add(*LogitsReference(path).read(0, 12), log_probabilities, np.zeros(12, int))
    report = divergence.report()
    assert report.mean_kl < 1e-6
    assert report.top1_agreement == 1


def test_probabilities_below_the_range_of_16_bits_stay_finite(tmp_path):
    scored = describe_text(b"", IDS, vocabulary=2, context=4, windows=1)
    with (tmp_path / "far").open("wb") as file:
        writer = LogitsWriter(file, scored, "m")
        writer.add(np.array([[0.0, -1e6], [0.0, -1e300]]))
        writer.finish()
    values, _ = LogitsReference(tmp_path / "far").read(0, 2)
    assert values[:, 1].tolist() == [-65504, -65504]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text_sha256": "0" * 64}, "another text"),
        ({"tokens_sha256": "0" * 64}, "another tokenizer"),
        ({"vocabulary": V + 1}, "another tokenizer"),
        ({"context": 10}, "windows of 8 tokens, not 10"),
        ({"windows": 2}, "3 windows, not 2"),
    ],
)
def test_a_reference_of_something_else_is_refused(path, scored, changes, problem):
    reference = LogitsReference(path)
    reference.require(scored)
    with pytest.raises(CheckpointError, match=problem):
        reference.require(replace(scored, **changes))


def test_tokens_behind_the_last_window_do_not_matter(scored):
    more = describe_text(b"text", [*IDS[:24], 7], vocabulary=V, context=CONTEXT, windows=WINDOWS)
    assert more == scored
    other = describe_text(b"text", [7, *IDS], vocabulary=V, context=CONTEXT, windows=WINDOWS)
    assert other != scored


def rewritten(path, change):
    """Change the header of a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["__metadata__"].update(format="other/1"),
        lambda header: header["__metadata__"].pop("context"),
        lambda header: header["__metadata__"].update(windows="many"),
        lambda header: header["__metadata__"].update(positions="11"),
        lambda header: header["log_probabilities"].update(dtype="BF16"),
        lambda header: header["log_probabilities"].update(shape=[V, 12]),
    ],
)
def test_a_damaged_file_is_refused(path, change):
    rewritten(path, change)
    with pytest.raises(CheckpointError):
        LogitsReference(path)


def test_a_truncated_file_and_infinities_are_refused(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError):
        LogitsReference(path)
    position = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:position] + b"\x00\xfc" + data[position + 2 :])
    with pytest.raises(CheckpointError, match="not finite"):
        LogitsReference(path).read(0, 1)
