import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_format.errors import UsageError
from ninfer_runtime.engine.request import (
    FinishReason,
    GenerationStart,
    OutputDelta,
    PromptInput,
    PromptProgress,
)
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.sampling.params import SamplingOverrides

STOP = 0


def test_a_stop_token_ends_the_output_and_counts(scene):
    result = scene([1, 2, 3, STOP]).run()
    assert result.text == "abc"
    assert result.token_ids == (1, 2, 3, STOP)
    assert result.completion_tokens == 4
    assert result.prompt_tokens == 2
    assert result.finish_reason is FinishReason.STOP_TOKEN


def test_an_ignored_stop_token_does_not_end_the_output(scene):
    result = scene([1, STOP, 2, 3]).run((5,), 4, ignore_eos=True)
    assert result.token_ids == (1, STOP, 2, 3)
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT


def test_the_output_limit_ends_the_output(scene):
    result = scene([1, 2, 3, STOP]).run((5, 6), 2)
    assert result.token_ids == (1, 2)
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT


def test_a_stop_token_at_the_limit_is_the_reason(scene):
    result = scene([1, STOP]).run((5, 6), 2)
    assert result.finish_reason is FinishReason.STOP_TOKEN


def test_the_last_token_is_not_executed(scene):
    built = scene([1, 2, 3])
    built.run((5, 6), 3)
    assert built.program.calls == [
        ("begin", (5, 6), 4),
        ("prefill",),
        ("decode", 1),
        ("decode", 2),
        ("finish", 1),
    ]


def test_no_output_executes_the_prompt_only(scene):
    built = scene(chunk=2)
    result = built.run((5, 6, 7), 0)
    assert result.token_ids == ()
    assert result.finish_reason is FinishReason.OUTPUT_LIMIT
    assert built.program.names() == ["begin", "prefill", "prefill", "finish"]


def test_a_prompt_that_fills_the_context_ends_at_once(scene):
    result = scene(max_context=3).run((5, 6, 7), 5)
    assert result.token_ids == ()
    assert result.finish_reason is FinishReason.CONTEXT_CAPACITY


def test_the_context_ends_the_output(scene):
    built = scene([1] * 10, max_context=4)
    result = built.run((5, 6, 7), 10)
    assert result.token_ids == (1, 1)
    assert result.finish_reason is FinishReason.CONTEXT_CAPACITY
    assert built.program.calls[0] == ("begin", (5, 6, 7), 4)


def test_a_prompt_beyond_the_context_is_refused_at_submit(scene):
    built = scene(max_context=3)
    with pytest.raises(RequestError, match="4 tokens") as caught:
        built.submit((1, 2, 3, 4))
    assert caught.value.kind is RequestErrorKind.CONTEXT_LENGTH_EXCEEDED
    assert built.program.calls == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(1, 8), st.integers(0, 12), st.integers(8, 12))
def test_nothing_is_executed_beyond_the_context(scene, prompt_tokens, requested, max_context):
    built = scene([1] * 20, max_context=max_context)
    built.run((5,) * prompt_tokens, requested)
    executed = prompt_tokens + built.program.names().count("decode")
    begin = built.program.calls[0]
    assert executed <= begin[2] <= max_context
    built.close()


def test_events_come_in_order(scene):
    built = scene([1, 2, STOP], chunk=2)
    sink = built.sink()
    built.run((5, 6, 7), sink=sink)
    assert sink.events == [
        GenerationStart(3, starts_in_reasoning=False, reused_prompt_tokens=0),
        PromptProgress(3, 0),
        PromptProgress(3, 2),
        PromptProgress(3, 3),
        OutputDelta("content", "a", 1),
        OutputDelta("content", "b", 2),
    ]


def test_streamed_text_equals_the_result(scene):
    built = scene([1, 2, 3, 4, STOP])
    sink = built.sink()
    assert built.run(sink=sink).text == sink.text == "abcd"


def test_text_is_published_before_the_next_token_is_executed(scene):
    built = scene([1, 2, STOP])
    decoded_when_published = []

    def note(event):
        if isinstance(event, OutputDelta):
            decoded_when_published.append(built.program.names().count("decode"))

    built.run(sink=built.sink(note))
    assert decoded_when_published == [0, 1]


def test_the_output_is_closed_once_with_the_reason(scene):
    built = scene([1, 2, 3])
    built.run((5,), 2)
    assert [output.closed_with for output in built.frontend.outputs] == [FinishReason.OUTPUT_LIMIT]


def test_a_stop_string_in_held_back_text_is_the_reason(scene):
    built = scene([1, 2, 3])

    def find_stop_string(output):
        output.matched_stop_string = "ab"
        output.finish_reason = FinishReason.STOP_STRING
        return (OutputDelta("content", "held back", 2),)

    built.frontend.on_close = find_stop_string
    sink = built.sink()
    result = built.run((5,), 2, sink=sink)
    assert result.finish_reason is FinishReason.STOP_STRING
    assert result.matched_stop_string == "ab"
    assert sink.text == "abheld back"


def test_generated_tokens_count_for_penalties(scene):
    built = scene()
    # Each token is half below the one before: a penalty of 2 makes the next ones come first.
    row = -0.5 * np.arange(27, dtype=np.float32)
    built.program._logits = row.copy
    penalty = SamplingOverrides(greedy=True, presence_penalty=2.0)
    result = built.run((5,), 3, sampling=penalty, ignore_eos=True)
    assert result.token_ids == (0, 1, 2)


def flat(built):
    built.program._logits = lambda: np.zeros(27, np.float32)


def test_a_seed_reproduces_its_output(scene):
    built = scene()
    flat(built)
    overrides = SamplingOverrides(temperature=1.0)
    first, second, other = (
        built.run((5,), 10, sampling=overrides, seed=seed, ignore_eos=True).token_ids
        for seed in (7, 7, 8)
    )
    assert first == second
    assert first != other


def test_a_missing_seed_is_drawn_and_reported(scene):
    built = scene()
    flat(built)
    overrides = SamplingOverrides(temperature=1.0)
    handle = built.submit((5,), 10, sampling=overrides, seed=None, ignore_eos=True)
    result = handle.wait(built.wait_s)
    assert handle.seed == result.seed
    again = built.run((5,), 10, sampling=overrides, seed=result.seed, ignore_eos=True)
    assert again.token_ids == result.token_ids
    other = built.submit((5,), 10, seed=None)
    assert other.seed != result.seed
    other.wait(built.wait_s)


def test_a_seed_beyond_64_bits_is_refused_at_submit(scene):
    with pytest.raises(UsageError, match="seed"):
        scene().submit(seed=2**64)


def test_the_preset_is_applied_and_reported(scene):
    handle = scene().submit(sampling=SamplingOverrides(top_k=3))
    assert (handle.sampling.temperature, handle.sampling.top_k) == (1.0, 3)


def test_timings_are_complete_and_never_negative(scene):
    timings = scene([1, 2, STOP]).run().timings
    parts = (timings.queue_s, timings.prefill_s, timings.decode_s)
    assert min(parts) >= 0
    assert sum(parts) <= timings.total_s


@pytest.mark.parametrize("max_output_tokens", [0, 1])
def test_timings_of_degenerate_requests_are_not_negative(scene, max_output_tokens):
    timings = scene([STOP]).run((5,), max_output_tokens).timings
    assert timings.decode_s == 0
    assert min(timings.queue_s, timings.prefill_s) >= 0


def test_prepare_uses_the_text_side(scene):
    assert scene().engine.prepare(PromptInput(raw_prompt=(4, 5))).token_ids == (4, 5)


def test_options_and_info_are_resolved(scene):
    engine = scene(positions=600).engine
    assert engine.options.max_context == engine.max_context == 600
    assert engine.model_info.max_context == 600


def test_counters_count_what_was_executed(scene):
    built = scene([1, 2, STOP])
    built.run((5, 6, 7))
    stats = built.engine.stats()
    assert stats.computed_prefill_tokens == 3
    assert stats.committed_decode_tokens == 2
    assert stats.decode_rounds == 2
    assert (stats.finished_requests, stats.failed_requests) == (1, 0)
    assert (stats.running, stats.waiting) == (0, 0)
