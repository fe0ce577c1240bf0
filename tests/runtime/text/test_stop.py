"""Stop strings against a definition that sees the whole text at once."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_format.errors import UsageError
from ninfer_runtime.text.stop import StopMatcher

SHORT = st.text("ab", min_size=1, max_size=4)


def expected(text, strings):
    """The leftmost match, and of those that start there the longest."""
    for start in range(len(text)):
        here = [string for string in strings if text.startswith(string, start)]
        if here:
            return text[:start], max(here, key=len)
    return text, None


def run(pieces, strings):
    matcher = StopMatcher(strings)
    shown = ""
    for piece in pieces:
        released, matched = matcher.feed(piece)
        shown += released
        if matched is not None:
            return shown, matched
    released, matched = matcher.flush()
    return shown + released, matched


@settings(deadline=None)
@given(pieces=st.lists(st.text("abc", max_size=5), max_size=6), strings=st.lists(SHORT, max_size=4))
@example(pieces=["ab", "x"], strings=["abc", "b"])
@example(pieces=["ab", "c"], strings=["abc", "b"])
@example(pieces=["ab"], strings=["ab", "abc"])
def test_any_partition_gives_the_leftmost_longest_match(pieces, strings):
    text = "".join(pieces)
    assert run(pieces, strings) == expected(text, strings)
    assert run(list(text), strings) == expected(text, strings)


def test_only_what_may_become_a_match_is_held_back():
    matcher = StopMatcher(["stop"])
    assert matcher.feed("a st") == ("a ", None)
    assert matcher.feed("ay") == ("stay", None)


def test_a_match_that_cannot_grow_counts_at_once():
    assert StopMatcher(["stop", "no longer"]).feed("a stop") == ("a ", "stop")


def test_report_d19_the_held_end_is_not_lost(play):
    played = play(["a", "?\n"], stop_strings=("\n\n",))
    assert played.session.content == "a?\n"
    assert played.text("content") == "a?\n"
    assert played.session.finish_reason == "stop_token"


def test_report_d25_a_stop_string_over_two_tokens_does_not_leak(play):
    played = play(["alpha be", "ta gam", "ma delta"], stop_strings=("beta gamma",))
    assert played.text("content") == played.session.content == "alpha "
    assert played.session.finish_reason == "stop_string"
    assert played.session.matched_stop_string == "beta gamma"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(UsageError, match="empty"):
        StopMatcher(["a", ""])
