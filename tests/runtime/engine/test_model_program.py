import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.runtime.engine.history_model import PUBLIC, HistoryModel, executor_of, history_row

from ninfer_runtime.engine.model_program import ModelProgram, StaleHandleError, log_probabilities
from ninfer_runtime.errors import RequestError, RequestErrorKind

tokens_strategy = st.lists(st.integers(0, PUBLIC - 1), min_size=2, max_size=40)


def best(tokens):
    return int(history_row(tokens)[:PUBLIC].argmax())


def program_of(chunk=128, model=None, **options):
    return ModelProgram(executor_of(model, chunk), **options)


def reference_scores(tokens, first_target):
    scores = []
    for target in range(first_target, len(tokens)):
        row = history_row(tokens[:target]).astype(np.float64)[:PUBLIC]
        scores.append(row[tokens[target]] - np.log(np.exp(row).sum()))
    return np.array(scores)


@given(tokens_strategy, st.integers(1, 50))
def test_prefill_executes_every_token_once_in_chunks(tokens, chunk):
    model = HistoryModel()
    program = program_of(chunk, model)
    handle = program.begin(tokens, len(tokens))
    processed = []
    while True:
        step = program.advance_prefill(handle)
        processed.append(step.processed)
        if step.token_id is not None:
            break
    assert processed == [*range(chunk, len(tokens), chunk), len(tokens)]
    assert sum(columns for _, columns in model.shapes) == len(tokens)
    assert model.logit_rows == [1]
    assert step.token_id == best(tokens)


@given(tokens_strategy, st.integers(1, 20))
def test_decode_continues_the_prompt(tokens, prompt_tokens):
    prompt, rest = tokens[:prompt_tokens], tokens[prompt_tokens:]
    program = program_of()
    handle = program.begin(prompt, len(tokens))
    program.advance_prefill(handle)
    for position, token in enumerate(rest, start=len(prompt) + 1):
        assert program.decode(handle, token) == best(tokens[:position])


@pytest.mark.parametrize("spare", [0, 1, 30])
def test_steps_may_be_begun_before_they_are_asked_for(spare):
    prompt, model = [1, 2, 3], HistoryModel()
    program = program_of(model=model, runs_ahead=True)
    for _ in range(2):
        model.shapes.clear()
        handle = program.begin(prompt, len(prompt) + 20 + spare)
        tokens = [*prompt, program.advance_prefill(handle).token_id]
        for _ in range(20):
            tokens.append(program.decode(handle, tokens[-1]))
        program.finish(handle)
        for position in range(len(prompt), len(tokens)):
            assert tokens[position] == best(tokens[:position])
        # One more than was asked for, where there is room.
        assert len(model.shapes) == 1 + 20 + min(spare, 1)


class OnceBrokenModel(HistoryModel):
    def forward(self, step, state):
        hidden = super().forward(step, state)
        if len(self.shapes) == 2:
            hidden.array[:] = np.nan
        return hidden


def test_a_broken_step_is_told_though_the_next_one_has_been_begun():
    program = program_of(model=OnceBrokenModel(), runs_ahead=True)
    handle = program.begin([1], 10)
    program.advance_prefill(handle)
    with pytest.raises(RequestError, match="a logit that is not finite") as caught:
        program.decode(handle, 3)
    assert caught.value.kind is RequestErrorKind.NON_FINITE_LOGITS


def test_another_token_than_the_chosen_one_is_no_longer_possible_then():
    program = program_of(runs_ahead=True)
    handle = program.begin([1], 10)
    program.advance_prefill(handle)
    chosen = program.decode(handle, 3)
    with pytest.raises(StaleHandleError, match=f"token {chosen + 1} is executed, {chosen} was"):
        program.decode(handle, chosen + 1)


@given(tokens_strategy, st.data(), st.integers(1, 50))
def test_scores_agree_with_a_reference_for_any_chunk(tokens, data, chunk):
    first_target = data.draw(st.integers(1, len(tokens) - 1))
    scores = program_of(chunk).score(tokens, first_target, PUBLIC)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, reference_scores(tokens, first_target), atol=1e-5)


def test_scoring_bounds_the_rows_of_logits_that_exist_at_a_time():
    model = HistoryModel()
    program_of(1024, model).score([1] * 700, 300, PUBLIC)
    assert model.shapes == [(1, 699)]
    assert max(model.logit_rows) <= 128
    assert sum(model.logit_rows) == 400


def test_scoring_starts_from_an_empty_state_each_time():
    program = program_of(16)
    tokens = [1, 2, 3, 4, 5]
    first = program.score(tokens, 1, PUBLIC)
    np.testing.assert_array_equal(program.score(tokens, 1, PUBLIC), first)


def test_no_sequence_begins_before_the_logits_of_a_stream_are_read():
    program = program_of(2)
    stream = program.target_logits([1, 2, 3, 4, 5], 1, PUBLIC)
    next(stream)
    for begin in (
        lambda: program.begin([1], 4),
        lambda: next(program.target_logits([1, 2], 1, PUBLIC)),
    ):
        with pytest.raises(StaleHandleError, match="neither read to their end nor closed"):
            begin()
    stream.close()
    handle = program.begin([1], 4)
    with pytest.raises(StaleHandleError, match="another one is active"):
        next(program.target_logits([1, 2], 1, PUBLIC))
    program.finish(handle)
    assert len(list(program.target_logits([1, 2, 3], 1, PUBLIC))) == 1


def test_a_failed_score_ends_its_stream_though_the_error_is_kept(monkeypatch):
    def full(logits, targets):
        raise MemoryError

    program = program_of()
    monkeypatch.setattr("ninfer_runtime.engine.model_program.log_probabilities", full)
    with pytest.raises(MemoryError) as kept:
        program.score([1, 2, 3], 1, PUBLIC)
    program.finish(program.begin([1], 4))
    assert kept.tb is not None


def test_a_handle_is_stale_after_its_sequence_has_ended():
    program = program_of(16)
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
    program = program_of(16)
    handle = program.begin([1, 2], 10)
    with pytest.raises(StaleHandleError):
        program.begin([3], 10)
    program.discard(handle)
    program.begin([3], 10)


def test_memory_counts_weights_and_the_largest_sequence():
    program = program_of(16)
    for capacity, pages in ((10, 1), (200, 4), (65, 2)):
        handle = program.begin([1, 2], capacity)
        memory = program.memory()
        assert (memory.weight_bytes, memory.sequence_bytes) == (4321, 100 * pages + 7)
        program.finish(handle)
    memory = program.memory()
    assert (memory.sequence_bytes, memory.sequence_peak_bytes) == (0, 407)


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
    def forward(self, step, state):
        hidden = super().forward(step, state)
        hidden.array[:] *= np.float32(3e38)
        hidden.array[:] *= np.float32(3e38)
        hidden.array[:] -= hidden.array
        return hidden


def test_numbers_that_overflow_give_no_warnings_but_an_error_that_says_so(recwarn):
    program = program_of(4, OverflowingModel())
    handle = program.begin((1, 2), 3)
    message = r"a logit that is not finite \(nan for token 0\)"
    with pytest.raises(RequestError, match=message) as caught:
        program.advance_prefill(handle)
    assert caught.value.kind is RequestErrorKind.NON_FINITE_LOGITS
    with pytest.raises(RequestError, match=message):
        program.decode(handle, 3)
    program.finish(handle)
    assert np.isnan(program.score((1, 2, 3), 1, PUBLIC)).all()
    assert not recwarn.list
