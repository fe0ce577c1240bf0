"""The whole way from tokens to channels, for every partition."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_format.errors import UsageError
from ninfer_runtime.engine.request import FinishReason, Tool

TOOLS = (Tool("f", parameters={"properties": {"a": {"type": "string"}}}),)
CALL = "<tool_call>\n<function=f>\n<parameter=a>\nv\n</parameter>\n</function>\n</tool_call>"

MARKUP = [
    "</think>",
    "STOP",
    "ST",
    "OP",
    "STOPPED",
    "<tool_call>",
    "</",
    "<function=f>",
    "tool_call>",
    "think>",
]
FRAGMENTS = st.sampled_from([*MARKUP, CALL, "\n", "\r\n", " ", "word", "é", "日"])


def outcome(played):
    session = played.session
    for channel, text in (("content", session.content), ("reasoning", session.reasoning)):
        assert played.text(channel) == text
    return (
        session.reasoning,
        session.content,
        played.calls,
        session.finish_reason,
        session.matched_stop_string,
    )


@settings(deadline=None)
@given(
    fragments=st.lists(FRAGMENTS, max_size=9),
    thinking=st.booleans(),
    tools=st.sampled_from([(), TOOLS]),
    parallel=st.booleans(),
    stops=st.sampled_from([(), ("STOP",), ("STOPPED", "STOP", "\n\n")]),
    data=st.data(),
)
def test_any_partition_gives_the_same_output(
    play, fragments, thinking, tools, parallel, stops, data
):
    text = "".join(fragments).encode()
    options = {
        "thinking": thinking,
        "tools": tools,
        "stop_strings": stops,
        "reasoning_stop_strings": stops[:1],
        "parallel_tool_calls": parallel,
    }
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    ends = [*cuts, len(text)]
    pieces = [text[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]
    whole = outcome(play([text] if text else [], **options))
    assert outcome(play(pieces, **options)) == whole
    assert outcome(play([bytes([byte]) for byte in text], **options)) == whole


@settings(deadline=None)
@given(fragments=st.lists(FRAGMENTS, max_size=9), thinking=st.booleans())
@example(fragments=["a", "\n", "</think>", "\n", "\n", "b"], thinking=True)
def test_without_stops_and_tools_nothing_is_lost(play, fragments, thinking):
    text = "".join(fragments)
    session = play(fragments, thinking=thinking).session
    if not thinking:
        assert (session.reasoning, session.content) == ("", text)
    else:
        pattern = re.escape(session.reasoning) + r"(\n?</think>\s*)?" + re.escape(session.content)
        assert re.fullmatch(pattern, text)


def test_deltas_count_tokens(play):
    played = play(["a", "b ", "</think>", "\n\n", "c"], thinking=True)
    seen = [(delta.channel, delta.text, delta.completion_tokens) for delta in played.deltas]
    assert seen == [("reasoning", "a", 1), ("reasoning", "b ", 2), ("content", "c", 5)]
    assert len(played.session.token_ids) == 6


def test_calls_are_taken_out_of_the_content(play, caplog):
    played = play(["I call. ", "\n", CALL, "\n", CALL], tools=TOOLS)
    assert played.session.content == played.text("content") == "I call."
    assert played.calls == [("f", {"a": "v"}), ("f", {"a": "v"})]
    ids = [call.id for call in played.session.tool_calls]
    assert all(re.fullmatch("call_[0-9a-f]{16}", call_id) for call_id in ids)
    assert len(set(ids)) == 2
    assert caplog.messages == []


def test_calls_in_thoughts_are_thoughts(play):
    played = play([CALL, "</think>\n"], thinking=True, tools=TOOLS)
    assert (played.session.reasoning, played.session.content, played.calls) == (CALL, "", [])


def test_without_tools_calls_are_text(play):
    assert play([CALL]).session.content == CALL


def test_a_call_that_is_cut_off_is_text(play):
    played = play([CALL, CALL[:-3]], tools=TOOLS, end_with_stop=False)
    held = played.session.close(FinishReason.OUTPUT_LIMIT)
    assert "".join(delta.text for delta in held) == played.session.content == CALL + CALL[:-3]
    assert played.calls == []
    assert played.session.finish_reason == FinishReason.OUTPUT_LIMIT


def test_a_stop_string_in_a_call_ends_the_output(play):
    played = play(list(CALL), tools=TOOLS, stop_strings=("</function>",))
    assert played.session.finish_reason == FinishReason.STOP_STRING
    assert played.session.content == CALL.split("</function>")[0]
    assert played.calls == []


def test_stop_strings_belong_to_one_channel(play):
    played = play(["a END", "</think>\n", "b END c"], thinking=True, stop_strings=("END",))
    assert (played.session.reasoning, played.session.content) == ("a END", "b ")
    played = play(["a END", "</think>\n", "b"], thinking=True, reasoning_stop_strings=("END",))
    assert (played.session.reasoning, played.session.content) == ("a ", "")
    assert played.session.matched_stop_string == "END"


def test_a_stop_string_does_not_match_across_channels(play):
    played = play(["a", "</think>\n", "b"], thinking=True, stop_strings=("ab",))
    assert (played.session.reasoning, played.session.content) == ("a", "b")


def test_the_end_of_the_thoughts_releases_what_a_stop_string_held(play):
    pieces = ["so", "</think>\n"]
    options = {"thinking": True, "end_with_stop": False, "reasoning_stop_strings": ("owl",)}
    assert play(pieces[:1], **options).text("reasoning") == "s"
    assert play(pieces, **options).text("reasoning") == "so"


def test_a_match_that_waited_for_a_longer_one_counts_at_the_end(play):
    played = play(["a ", "STOP"], stop_strings=("STOP", "STOPPED"))
    assert played.session.content == "a "
    assert played.session.finish_reason == FinishReason.STOP_STRING
    played = play(["a ", "STOP"], stop_strings=("STOP", "STOPPED"), end_with_stop=False)
    played.session.close(FinishReason.OUTPUT_LIMIT)
    assert played.session.finish_reason == FinishReason.STOP_STRING
    assert played.session.matched_stop_string == "STOP"


def test_stop_tokens_of_the_caller_stop(play):
    played = play(["a", "b", "c"], stop_token_ids=(1,))
    assert played.session.content == "a"
    assert played.session.finish_reason == FinishReason.STOP_TOKEN
    assert played.session.token_ids == [0, 1]


def test_the_models_stop_tokens_can_be_ignored(play):
    played = play(["a"], ignore_eos=True)
    assert played.session.finish_reason is None
    assert played.session.content == "a"
    # Those of the caller still stop, even if they are the same.
    played = play(["a", "b"], ignore_eos=True, stop_token_ids=(2,))
    assert played.session.finish_reason == FinishReason.STOP_TOKEN


def test_raw_output_shows_everything_in_one_channel(play):
    played = play(["a", "</think>\n", CALL], thinking=True, tools=TOOLS, raw_output=True)
    assert played.session.content == played.text("content") == f"a</think>\n{CALL}<|stop|>"
    assert (played.session.reasoning, played.calls) == ("", [])
    assert played.session.reasoning_tokens == 0


@pytest.mark.parametrize("reason", list(FinishReason))
def test_closing_releases_what_was_held(play, reason):
    played = play(["a", " ", "<tool_"], tools=TOOLS, end_with_stop=False)
    assert played.text("content") == "a"
    assert [delta.text for delta in played.session.close(reason)] == [" <tool_"]
    assert played.session.finish_reason == reason


def test_an_ended_output_stays_as_it_is(play):
    session = play(["a"]).session
    assert session.accept(0) == ((), FinishReason.STOP_TOKEN)
    assert session.close(FinishReason.CANCELLED) == ()
    assert (session.content, session.token_ids) == ("a", [0, 1])
    assert session.finish_reason == FinishReason.STOP_TOKEN


def test_an_output_without_tokens_is_empty(play):
    session = play([], end_with_stop=False).session
    assert session.close(FinishReason.OUTPUT_LIMIT) == ()
    assert (session.content, session.reasoning, session.tool_calls) == ("", "", ())


def test_an_empty_stop_string_is_refused(play):
    with pytest.raises(UsageError, match="empty"):
        play(["a"], stop_strings=("",))


@pytest.mark.parametrize("behind", ["", " more", "STOP", CALL])
def test_output_ends_right_after_the_only_call(play, behind):
    pieces = ["Wait. ", CALL + behind, "never"]
    played = play(pieces, tools=TOOLS, parallel_tool_calls=False, stop_strings=("STOP",))
    session = played.session
    assert session.content == "Wait."
    assert [call.name for call in session.tool_calls] == ["f"]
    assert session.finish_reason is FinishReason.TOOL_CALL
    assert session.matched_stop_string is None
    assert len(session.token_ids) == 2
