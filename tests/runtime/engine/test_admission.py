import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_runtime.engine.admission import check_output_tokens, check_prompt, output_limit
from ninfer_runtime.engine.request import FinishReason, PreparedPrompt
from ninfer_runtime.errors import RequestError, RequestErrorKind


def prompt_of(*token_ids):
    return PreparedPrompt(token_ids, "", starts_in_reasoning=False)


def simulate(requested, prompt_tokens, max_context):
    """Generate one by one: a token may be chosen as long as all before it are executed."""
    generated, executed = 0, prompt_tokens
    while generated < requested:
        if executed > max_context or prompt_tokens == max_context:
            return generated, FinishReason.CONTEXT_CAPACITY
        generated += 1
        executed += 1  # the token just chosen, if another one is to follow
    return generated, FinishReason.OUTPUT_LIMIT


@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 30))
def test_output_limit_agrees_with_a_simulation(requested, prompt_tokens, room):
    limit = output_limit(requested, prompt_tokens, prompt_tokens + room)
    assert (limit.tokens, limit.reason) == simulate(requested, prompt_tokens, prompt_tokens + room)


@pytest.mark.parametrize(
    ("requested", "prompt_tokens", "tokens", "reason"),
    [
        (5, 100, 0, FinishReason.CONTEXT_CAPACITY),
        (0, 100, 0, FinishReason.OUTPUT_LIMIT),
        (0, 1, 0, FinishReason.OUTPUT_LIMIT),
        (5, 99, 2, FinishReason.CONTEXT_CAPACITY),
        (2, 99, 2, FinishReason.OUTPUT_LIMIT),
        (100, 1, 100, FinishReason.OUTPUT_LIMIT),
        (101, 1, 100, FinishReason.CONTEXT_CAPACITY),
    ],
)
def test_limits_at_the_edges_of_a_context_of_100(requested, prompt_tokens, tokens, reason):
    limit = output_limit(requested, prompt_tokens, 100)
    assert (limit.tokens, limit.reason) == (tokens, reason)


def test_an_empty_prompt_is_refused():
    with pytest.raises(RequestError) as caught:
        check_prompt(prompt_of(), public_tokens=10, max_context=10)
    assert caught.value.kind is RequestErrorKind.INVALID_PROMPT


@pytest.mark.parametrize("token_id", [-1, 10, 2**31])
def test_a_token_outside_the_vocabulary_is_refused_with_its_position(token_id):
    with pytest.raises(RequestError, match=f"token {token_id} at position 1") as caught:
        check_prompt(prompt_of(0, token_id, 9), public_tokens=10, max_context=10)
    assert caught.value.kind is RequestErrorKind.INVALID_PROMPT


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers():
    with pytest.raises(RequestError, match=r"4 tokens.* 3") as caught:
        check_prompt(prompt_of(1, 1, 1, 1), public_tokens=10, max_context=3)
    assert caught.value.kind is RequestErrorKind.CONTEXT_LENGTH_EXCEEDED
    assert (caught.value.prompt_tokens, caught.value.max_context) == (4, 3)


def test_a_prompt_that_fills_the_context_is_accepted():
    check_prompt(prompt_of(1, 1, 1), public_tokens=10, max_context=3)


def test_a_negative_output_is_refused():
    with pytest.raises(RequestError, match="-1"):
        check_output_tokens(-1)
