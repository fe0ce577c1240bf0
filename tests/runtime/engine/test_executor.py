"""Several sequences at once give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.engine.history_model import (
    CONTEXT,
    PUBLIC,
    HistoryModel,
    V,
    executor_of,
    history_row,
)

from ninfer_runtime.engine.lanes import PagePool
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.sampling.distribution import penalized, processed_distribution
from ninfer_runtime.sampling.params import GREEDY, Sampling, SamplingParams
from ninfer_runtime.sampling.random import Purpose, uniform

WARM = SamplingParams(1.0, 0.9, 5, 0.05, 0.0, 0.0)
PENALIZED = SamplingParams(0.8, 1.0, 0, 0.0, 1.5, 0.5)


def chosen(tokens, generated, sampling, purpose):
    """The token after `tokens` by the host's own functions."""
    counts = np.zeros(PUBLIC, np.int32)
    np.add.at(counts, np.array(generated, np.int64), 1)
    logits = penalized(history_row(tokens)[:PUBLIC], sampling.params, counts)
    u = uniform(sampling.seed, len(tokens) - 1, purpose)
    return processed_distribution(logits, sampling.params).draw(u)


def continuation(prompt, count, sampling):
    """A prompt's generated tokens by the host's own functions."""
    generated = [chosen(prompt, [], sampling, Purpose.PREFILL)]
    while len(generated) < count:
        generated.append(chosen([*prompt, *generated], generated, sampling, Purpose.DECODE))
    return generated


def start(executor, prompt, capacity=CONTEXT // 4, sampling=GREEDY):
    lane = executor.begin(capacity, sampling)
    choice = executor.choose(executor.prefill(lane, np.array(prompt)))
    return lane, int(choice.wait()[0])


@pytest.mark.parametrize("params", [GREEDY.params, WARM, PENALIZED])
@pytest.mark.parametrize("is_fed_back", [False, True])
def test_sequences_in_one_step_choose_what_each_chooses_alone(params, is_fed_back):
    executor = executor_of(lanes=3)
    rng = np.random.default_rng(7)
    prompts = [rng.integers(0, PUBLIC, n).tolist() for n in (3, 70, 1)]
    samplings = [Sampling(params, seed) for seed in (0, 2**64 - 1, 5)]
    lanes, outputs = [], []
    for prompt, sampling in zip(prompts, samplings, strict=True):
        lane, token = start(executor, prompt, sampling=sampling)
        lanes.append(lane)
        outputs.append([token])
    for step in range(90):
        ids = None if is_fed_back and step else [output[-1] for output in outputs]
        for output, token in zip(outputs, executor.decode(lanes, ids).wait(), strict=True):
            output.append(int(token))
    for prompt, sampling, output in zip(prompts, samplings, outputs, strict=True):
        assert output == continuation(prompt, 91, sampling)


def test_sequences_may_come_and_go_between_steps():
    executor = executor_of(lanes=2)
    first, token = start(executor, [1, 2, 3])
    executor.decode([first], [token]).wait()
    second, other = start(executor, [4])
    expected = continuation([1, 2, 3], 4, GREEDY)
    # In another order, and the tokens of one known on the device only.
    choice = executor.decode([second, first], [other, expected[1]])
    assert choice.wait().tolist() == [continuation([4], 2, GREEDY)[1], expected[2]]
    assert executor.decode([first, second]).wait()[0] == expected[3]
    executor.end(first)
    assert executor.decode([second]).wait()[0] == continuation([4], 4, GREEDY)[3]
    third, token = start(executor, [5, 6])
    assert third.index == first.index
    assert token == continuation([5, 6], 1, GREEDY)[0]
    with pytest.raises(OpArgumentError, match="sequences of the last step"):
        executor.decode([second])


def test_penalties_forget_the_sequence_before():
    executor = executor_of()
    for _ in range(2):
        lane, token = start(executor, [1], sampling=Sampling(PENALIZED, 3))
        output = [token]
        for _ in range(5):
            output.append(int(executor.decode([lane], [output[-1]]).wait()[0]))
        assert output == continuation([1], 6, Sampling(PENALIZED, 3))
        executor.end(lane)


def test_seeds_can_be_read_as_words_of_64_bits():
    executor = executor_of(lanes=8)
    for buffers in (executor._prefill, *executor._decode.values()):
        block, seed = (
            each.array.ctypes.data for each in (buffers._block, buffers.sampling_rows.seed)
        )
        assert (seed - block) % 8 == 0


def test_pages_are_those_that_a_sequence_needs():
    executor = executor_of(lanes=2, max_context=640)
    first = executor.begin(65, GREEDY)
    second = executor.begin(640, GREEDY)
    assert first.pages == (0, 1)
    assert second.pages == tuple(range(2, 12))
    assert executor.active_bytes == 12 * 100 + 2 * 7
    executor.end(first)
    assert executor.begin(1, GREEDY).pages == (0,)


def test_the_lowest_free_pages_are_taken():
    pool = PagePool(6)
    first, second = pool.take(2), pool.take(3)
    assert (first, second, pool.take(2)) == ((0, 1), (2, 3, 4), None)
    assert first is not None
    pool.give_back(first)
    assert (pool.take(3), pool.free_pages) == ((0, 1, 5), 0)


@pytest.mark.parametrize("token", [-1, V])
def test_ids_that_the_model_does_not_have_are_refused(token):
    executor = executor_of()
    lane = executor.begin(10, GREEDY)
    with pytest.raises(OpArgumentError, match=f"token_ids.*0..{V - 1}.*{token}"):
        executor.prefill(lane, np.array([1, token]))
    executor.prefill(lane, np.array([1]))
    with pytest.raises(OpArgumentError, match="token_ids"):
        executor.decode([lane], [token])


def test_more_tokens_than_there_is_room_for_are_refused():
    executor = executor_of(chunk=4)
    lane = executor.begin(5, GREEDY)
    with pytest.raises(OpArgumentError, match=r"1\.\.4 tokens"):
        executor.prefill(lane, np.ones(5, np.int64))
    executor.prefill(lane, np.ones(4, np.int64))
    with pytest.raises(OpArgumentError, match="at most 1 more"):
        executor.prefill(lane, np.ones(2, np.int64))
    executor.choose(executor.prefill(lane, np.ones(1, np.int64)))
    with pytest.raises(OpArgumentError, match="at most 0 more"):
        executor.decode([lane])


def test_what_the_executor_was_not_made_for_is_refused():
    with pytest.raises(OpArgumentError, match=r"1\.\.8"):
        executor_of(lanes=9)
    executor = executor_of()
    with pytest.raises(OpArgumentError, match=r"1\.\.1000 tokens"):
        executor.begin(CONTEXT + 1, GREEDY)
    lane = executor.begin(5, GREEDY)
    with pytest.raises(OpArgumentError, match="a free lane"):
        executor.begin(5, GREEDY)
    with pytest.raises(OpArgumentError, match="no active sequence"):
        executor.record()
    executor.end(lane)
    with pytest.raises(OpArgumentError, match="an active sequence"):
        executor.prefill(lane, np.array([1]))
    with pytest.raises(OpArgumentError, match="one of 1 sequences"):
        executor.decode([lane, lane], [1, 1])


def test_only_rows_of_the_last_step_are_chosen_from():
    executor = executor_of(lanes=2)
    first, second = executor.begin(5, GREEDY), executor.begin(5, GREEDY)
    before = executor.prefill(first, np.array([1, 2]))
    last = executor.prefill(second, np.array([3]))
    for other in (before, last[-1:]):
        with pytest.raises(
            OpArgumentError, match="expected what prefill returned in the last step"
        ):
            executor.choose(other)
    token = int(executor.choose(last).wait()[0])
    with pytest.raises(OpArgumentError, match="'hidden'"):
        executor.choose(last)
    last = executor.prefill(second, np.array([token]))
    executor.decode([second], [token])
    with pytest.raises(OpArgumentError, match="'hidden'"):
        executor.choose(last)


def test_only_what_a_step_has_is_executed():
    model = HistoryModel()
    executor = executor_of(model, chunk=512, lanes=2)
    lane, token = start(executor, [1] * 5)
    executor.decode([lane], [token])
    assert model.shapes == [(1, 5), (1, 1)]


def test_choices_are_there_until_too_many_others_were_made():
    executor = executor_of()
    lane, token = start(executor, [1])
    first = executor.decode([lane], [token])
    for _ in range(31):
        executor.decode([lane])
    assert first.wait().tolist() == [continuation([1], 2, GREEDY)[1]]
    executor.decode([lane])
    with pytest.raises(OpArgumentError, match="read before 32 more steps"):
        first.wait()


def test_a_sequence_ends_once():
    executor = executor_of(lanes=2)
    first = executor.begin(4, GREEDY)
    executor.end(first)
    second = executor.begin(4, GREEDY)
    assert second.pages == first.pages
    # Its pages and its lane are the second one's now.
    with pytest.raises(OpArgumentError, match="expected an active sequence"):
        executor.end(first)
    assert executor.begin(4, GREEDY).pages != second.pages


def test_a_step_takes_each_sequence_once_and_a_token_of_each():
    executor = executor_of(lanes=2)
    (one, _), (other, _) = start(executor, [1, 2]), start(executor, [3])
    with pytest.raises(OpArgumentError, match="different sequences"):
        executor.decode([one, one], [4, 4])
    with pytest.raises(OpArgumentError, match="token_ids"):
        executor.decode([one, other], [4])
    assert (one.length, other.length) == (2, 1)
