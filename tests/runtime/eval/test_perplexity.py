import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_format.errors import ExitCode, UsageError
from ninfer_runtime.errors import RequestError
from ninfer_runtime.eval.perplexity import score_stream, windows

V = 7


class PairModel:
    """Scores a token by the two before it, as far as the window has them."""

    def __init__(self):
        self.rows = np.random.default_rng(1).normal(size=(V + 1, V + 1, V))
        self.calls = []

    def row(self, before):
        last = before[-1]
        earlier = before[-2] if len(before) > 1 else V
        return self.rows[earlier, last]

    def log_probability(self, before, token):
        row = self.row(before)
        return row[token] - np.log(np.exp(row).sum())

    def score(self, token_ids, first_target, public_tokens):
        self.calls.append((tuple(token_ids), first_target, public_tokens))
        return np.array(
            [
                self.log_probability(token_ids[:target], token_ids[target])
                for target in range(first_target, len(token_ids))
            ],
            np.float32,
        )


def brute_force(num_tokens, context, stride):
    """For every target the window that scores it, straight from the rule in words."""
    owners = {}
    for target in range(1, num_tokens):
        if target < context:
            owners[target] = 0
        else:
            # Window k ends before k * stride + context and owns what window k - 1 does not reach.
            owners[target] = next(
                k for k in range(1, num_tokens + 1) if target < k * stride + context
            )
    return owners


sizes = st.integers(2, 30).flatmap(
    lambda context: st.tuples(st.just(context), st.integers(1, context - 1))
)


@given(st.integers(2, 120), sizes)
def test_every_target_is_scored_once_by_the_right_window(num_tokens, context_and_stride):
    context, stride = context_and_stride
    found = {}
    for index, window in enumerate(windows(num_tokens, context, stride)):
        assert window.begin == index * stride
        assert window.end - window.begin <= context
        assert window.begin < window.first_target
        for target in range(window.first_target, window.end):
            assert target not in found
            found[target] = index
    assert found == brute_force(num_tokens, context, stride)


@given(st.integers(2, 120), sizes)
def test_every_target_but_the_first_ones_has_its_context(num_tokens, context_and_stride):
    context, stride = context_and_stride
    for window in windows(num_tokens, context, stride):
        if window.begin > 0:
            assert window.first_target - window.begin >= context - stride


def test_the_windows_of_the_reference_scoring():
    cut = list(windows(130_145, 512, 256))
    assert len(cut) == 508
    assert sum(window.num_targets for window in cut) == 130_144
    assert [window.num_targets for window in cut[:2]] == [511, 256]
    assert cut[-1].num_targets == 97


@pytest.mark.parametrize(("context", "stride"), [(1, 1), (0, 1), (4, 4), (4, 5), (4, 0), (4, -1)])
def test_sizes_that_give_no_windows_are_refused(context, stride):
    with pytest.raises(UsageError, match=r"context|stride"):
        list(windows(10, context, stride))


@pytest.mark.parametrize("token_ids", [[], [3]])
def test_a_stream_without_targets_is_refused(token_ids):
    with pytest.raises(UsageError, match="at least 2"):
        score_stream(PairModel(), token_ids, context=4, stride=2, public_tokens=V)


@given(st.lists(st.integers(0, V - 1), min_size=2, max_size=60), sizes)
def test_the_mean_is_that_of_all_targets(token_ids, context_and_stride):
    context, stride = context_and_stride
    model = PairModel()
    report = score_stream(model, token_ids, context=context, stride=stride, public_tokens=V)
    owners = brute_force(len(token_ids), context, stride)
    expected = [
        -model.log_probability(token_ids[owners[target] * stride : target], token_ids[target])
        for target in range(1, len(token_ids))
    ]
    assert report.scored_tokens == len(token_ids) - 1
    assert math.isclose(report.mean_nll, sum(expected) / len(expected), rel_tol=1e-6)
    assert math.isclose(report.perplexity, math.exp(report.mean_nll))
    assert math.isclose(report.bits_per_token * math.log(2), report.mean_nll)
    for score in report.windows:
        mean = sum(expected[score.window.first_target - 1 : score.window.end - 1])
        assert math.isclose(score.mean_nll * score.window.num_targets, mean, rel_tol=1e-6)


def test_windows_do_not_share_tokens_beyond_their_context():
    model = PairModel()
    tokens = list(range(V)) * 3
    score_stream(model, tokens, context=6, stride=4, public_tokens=V)
    assert [call[0] for call in model.calls[:2]] == [tuple(tokens[0:6]), tuple(tokens[4:10])]
    assert [call[1] for call in model.calls[:2]] == [1, 2]


def test_progress_counts_targets():
    counted: list[int] = []
    score_stream(
        PairModel(),
        [1] * 20,
        context=6,
        stride=4,
        public_tokens=V,
        advance=counted.append,
    )
    assert counted == [5, 4, 4, 4, 2]


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_a_score_that_is_not_finite_is_named(value):
    class Broken(PairModel):
        def score(self, token_ids, first_target, public_tokens):
            scores = super().score(token_ids, first_target, public_tokens)
            if len(self.calls) == 3:
                scores[1] = value
            return scores

    with pytest.raises(RequestError, match=r"window 2, position 11\b") as caught:
        score_stream(Broken(), [1] * 20, context=6, stride=4, public_tokens=V)
    assert caught.value.exit_code == ExitCode.FAILED


def test_an_enormous_loss_has_no_finite_perplexity():
    class Hopeless(PairModel):
        def score(self, token_ids, first_target, public_tokens):
            return np.full(len(token_ids) - first_target, -1000, np.float32)

    report = score_stream(Hopeless(), [1] * 5, context=4, stride=2, public_tokens=V)
    assert report.mean_nll == 1000
    assert report.perplexity == math.inf


def test_many_small_terms_are_summed_without_loss():
    class Tiny(PairModel):
        def score(self, token_ids, first_target, public_tokens):
            return np.full(len(token_ids) - first_target, -0.1, np.float32)

    report = score_stream(Tiny(), [1] * 200_000, context=5000, stride=4999, public_tokens=V)
    assert math.isclose(report.mean_nll, float(np.float32(0.1)), rel_tol=1e-12)
