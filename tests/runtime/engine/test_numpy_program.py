import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ninfer_runtime.device import get_device
from ninfer_runtime.engine.numpy_program import NumpyProgram, StaleHandleError, log_probabilities

V = 11
PUBLIC = 9


class HistoryState:
    def __init__(self, capacity):
        self.capacity = capacity
        self.tokens = []

    @property
    def length(self):
        return len(self.tokens)

    @property
    def num_bytes(self):
        return 100 * self.length


class HistoryModel:
    """Its logits depend on every token before, so that a lost or repeated one shows."""

    vocab_size = V
    max_position_embeddings = 1000
    weight_bytes = 4321

    def __init__(self):
        self.device = get_device("cpu")
        self.chunks = []
        self.logit_rows = []

    def state_bytes(self, capacity):
        return 100 * capacity

    def new_state(self, capacity):
        return HistoryState(capacity)

    def forward(self, token_ids, state):
        self.chunks.append(len(token_ids))
        rows = []
        for token in token_ids:
            state.tokens.append(int(token))
            rows.append(history_row(state.tokens))
        assert state.length <= state.capacity
        return self.device.from_host(np.stack(rows))

    def logits(self, hidden):
        self.logit_rows.append(hidden.shape[0])
        return self.device.to_host(hidden)


def history_row(tokens):
    seed = [len(tokens), *tokens]
    return np.random.default_rng(seed).normal(size=V).astype(np.float32)


def reference_scores(tokens, first_target):
    scores = []
    for target in range(first_target, len(tokens)):
        row = history_row(tokens[:target]).astype(np.float64)[:PUBLIC]
        scores.append(row[tokens[target]] - np.log(np.exp(row).sum()))
    return np.array(scores)


tokens_strategy = st.lists(st.integers(0, PUBLIC - 1), min_size=2, max_size=40)


@given(tokens_strategy, st.integers(1, 50))
def test_prefill_executes_every_token_once_in_chunks(tokens, chunk):
    model = HistoryModel()
    program = NumpyProgram(model, chunk)
    handle = program.begin(tokens, len(tokens))
    processed = []
    while True:
        step = program.advance_prefill(handle)
        processed.append(step.processed)
        if step.logits is not None:
            break
    assert processed == [*range(chunk, len(tokens), chunk), len(tokens)]
    assert sum(model.chunks) == len(tokens)
    assert model.logit_rows == [1]
    np.testing.assert_array_equal(step.logits, history_row(tokens))


@given(tokens_strategy, st.integers(1, 20))
def test_decode_continues_the_prompt(tokens, prompt_tokens):
    prompt, rest = tokens[:prompt_tokens], tokens[prompt_tokens:]
    program = NumpyProgram(HistoryModel(), 128)
    handle = program.begin(prompt, len(tokens))
    program.advance_prefill(handle)
    for position, token in enumerate(rest, start=len(prompt) + 1):
        logits = program.decode(handle, token)
        np.testing.assert_array_equal(logits, history_row(tokens[:position]))


@given(tokens_strategy, st.data(), st.integers(1, 50))
def test_scores_agree_with_a_reference_for_any_chunk(tokens, data, chunk):
    first_target = data.draw(st.integers(1, len(tokens) - 1))
    scores = NumpyProgram(HistoryModel(), chunk).score(tokens, first_target, PUBLIC)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, reference_scores(tokens, first_target), atol=1e-5)


def test_scoring_bounds_the_rows_of_logits_that_exist_at_a_time():
    model = HistoryModel()
    NumpyProgram(model, 1024).score([1] * 700, 300, PUBLIC)
    assert model.chunks == [699]
    assert max(model.logit_rows) <= 128
    assert sum(model.logit_rows) == 400


def test_scoring_starts_from_an_empty_state_each_time():
    program = NumpyProgram(HistoryModel(), 16)
    tokens = [1, 2, 3, 4, 5]
    first = program.score(tokens, 1, PUBLIC)
    np.testing.assert_array_equal(program.score(tokens, 1, PUBLIC), first)


def test_a_handle_is_stale_after_its_sequence_has_ended():
    program = NumpyProgram(HistoryModel(), 16)
    old = program.begin([1, 2], 10)
    program.finish(old)
    new = program.begin([3], 10)
    for use in (program.advance_prefill, program.finish, program.discard):
        with pytest.raises(StaleHandleError):
            use(old)
    with pytest.raises(StaleHandleError):
        program.decode(old, 1)
    program.advance_prefill(new)


def test_a_second_sequence_is_refused_while_one_is_active():
    program = NumpyProgram(HistoryModel(), 16)
    handle = program.begin([1, 2], 10)
    with pytest.raises(StaleHandleError):
        program.begin([3], 10)
    program.discard(handle)
    program.begin([3], 10)


def test_memory_counts_weights_and_the_largest_sequence():
    program = NumpyProgram(HistoryModel(), 16)
    for tokens in ([1] * 5, [1] * 9, [1] * 2):
        handle = program.begin(tokens, 10)
        program.advance_prefill(handle)
        memory = program.memory()
        assert (memory.weight_bytes, memory.sequence_bytes) == (4321, 100 * len(tokens))
        program.finish(handle)
    memory = program.memory()
    assert (memory.sequence_bytes, memory.sequence_peak_bytes) == (0, 900)


finite = st.floats(-1e4, 1e4, width=32)


@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 30)), elements=finite))
def test_log_probabilities_agree_with_float64(logits):
    rows, vocabulary = logits.shape
    targets = np.arange(rows) % vocabulary
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1)
    expected = (
        wide[np.arange(rows), targets]
        - largest
        - np.log(np.exp(wide - largest[:, None]).sum(axis=1))
    )
    found = log_probabilities(logits, targets)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_gives_a_score_that_is_not(value):
    logits = np.zeros((2, 4), np.float32)
    logits[1, 2] = value
    with np.errstate(invalid="ignore"):
        scores = log_probabilities(logits, np.array([0, 0]))
    assert np.isfinite(scores[0])
    assert not np.isfinite(scores[1])


class OverflowingModel(HistoryModel):
    def forward(self, token_ids, state):
        hidden = super().forward(token_ids, state)
        hidden.array[:] *= np.float32(3e38)
        hidden.array[:] *= np.float32(3e38)
        hidden.array[:] -= hidden.array
        return hidden


def test_numbers_that_overflow_give_no_warnings_but_what_is_not_finite(recwarn):
    program = NumpyProgram(OverflowingModel(), 4)
    handle = program.begin((1, 2), 3)
    logits = program.advance_prefill(handle).logits
    assert logits is not None
    assert np.isnan(logits).all()
    assert np.isnan(program.decode(handle, 3)).all()
    program.finish(handle)
    assert np.isnan(program.score((1, 2, 3), 1, PUBLIC)).all()
    assert not recwarn.list
