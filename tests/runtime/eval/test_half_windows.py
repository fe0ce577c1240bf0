import numpy as np
import pytest

from ninfer_format.errors import UsageError
from ninfer_runtime.errors import RequestError
from ninfer_runtime.eval.half_windows import half_windows, score_half_windows

V = 5


class LastTokenModel:
    """Predicts by the last token of the window alone, some rows at a time."""

    def __init__(self, rows_at_a_time=2):
        self.table = np.random.default_rng(4).normal(size=(V, V)).astype(np.float32)
        self.rows_at_a_time = rows_at_a_time

    def target_logits(self, token_ids, first_target, public_tokens):
        rows = self.table[list(token_ids[first_target - 1 : -1]), :public_tokens]
        for begin in range(0, len(rows), self.rows_at_a_time):
            yield rows[begin : begin + self.rows_at_a_time]


@pytest.mark.parametrize("context", [4, 5, 10])
def test_second_halves_of_whole_windows_are_scored(context):
    tokens = [int(token) for token in np.random.default_rng(5).integers(0, V, 33)]
    model = LastTokenModel()
    seen, taken = [], []

    def take(log_probabilities, targets):
        seen.extend(log_probabilities)
        taken.extend(targets.tolist())

    windows = half_windows(len(tokens), context)
    report = score_half_windows(model, tokens, windows, public_tokens=V, consumer=take)
    positions = [
        target
        for begin in range(0, 33 - context + 1, context)
        for target in range(begin + context // 2, begin + context)
    ]
    assert taken == [tokens[position] for position in positions]
    expected = []
    for position, found in zip(positions, seen, strict=True):
        row = model.table[tokens[position - 1]].astype(np.float64)
        assert found == pytest.approx(row - np.log(np.exp(row).sum()), abs=1e-12)
        expected.append(-found[tokens[position]])
    assert report.mean_nll == pytest.approx(np.mean(expected), rel=1e-12)
    assert report.scored_tokens == len(positions)


def test_no_more_windows_than_asked_for():
    assert len(half_windows(100, 10)) == 10
    assert [window.begin for window in half_windows(100, 10, 3)] == [0, 10, 20]
    assert len(half_windows(100, 10, 30)) == 10


@pytest.mark.parametrize(("tokens", "context"), [(9, 10), (0, 4), (100, 3)])
def test_nothing_to_score_is_refused(tokens, context):
    with pytest.raises(UsageError):
        half_windows(tokens, context)


def test_a_logit_that_is_not_finite_is_located():
    model = LastTokenModel()
    model.table[3, 1] = np.nan
    tokens = [0, 0, 0, 0, 0, 0, 3, 0]
    windows = half_windows(8, 4)
    with pytest.raises(RequestError, match="window 1, position 7"):
        score_half_windows(
            model, tokens, windows, public_tokens=V, consumer=lambda rows, targets: None
        )
