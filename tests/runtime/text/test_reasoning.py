"""Where thoughts end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_runtime.text.parsers.reasoning import ReasoningParser, split_history

FRAGMENTS = st.sampled_from(
    ["</think>", "</thi", "nk>", "\n", " ", "\r\n", "x", "<think>", "</think>.", "<", "\t", "é"]
)


def parse(pieces, *, thinking=True):
    parser = ReasoningParser(starts_in_reasoning=thinking)
    shown = [piece for text in pieces for piece in parser.feed(text)] + parser.flush()
    return tuple(
        "".join(text for channel, text in shown if channel == name)
        for name in ("reasoning", "content")
    )


def expected(text):
    """The definition, on the whole text."""
    start = 0
    while (close := text.find("</think>", start)) >= 0:
        rest = text[close + 8 :]
        if not rest or rest[0] in " \t\r\n":
            thoughts = text[:close]
            return thoughts[:-1] if thoughts.endswith("\n") else thoughts, rest.lstrip(" \t\r\n")
        start = close + 8
    return text, ""


@settings(deadline=None)
@given(pieces=st.lists(FRAGMENTS, max_size=10))
def test_any_partition_gives_the_same_channels(pieces):
    text = "".join(pieces)
    assert parse(pieces) == parse([text]) == parse(list(text)) == expected(text)


@pytest.mark.parametrize(
    ("text", "channels"),
    [
        ("a\n</think>\n\nb", ("a", "b")),
        ("a</think> b", ("a", "b")),
        ("a\n\n</think>\n\nb\n", ("a\n", "b\n")),
        ("say </think>. now\n</think>\nb", ("say </think>. now", "b")),
        ("a</think>", ("a", "")),
        ("never closed\n", ("never closed\n", "")),
        ("</think>\n\nb", ("", "b")),
        ("a</think>\nb</think>\nc", ("a", "b</think>\nc")),
        ("", ("", "")),
    ],
)
def test_thoughts_end_at_the_first_marker_that_is_meant(text, channels):
    assert parse([text]) == channels


def test_output_that_starts_in_content_is_left_alone():
    assert parse(["\n a</think>\n", "b"], thinking=False) == ("", "\n a</think>\nb")


def test_thoughts_flow_while_they_are_written():
    parser = ReasoningParser(starts_in_reasoning=True)
    assert parser.feed("some thoughts") == [("reasoning", "some thoughts")]
    assert parser.feed("\n</think>") == []
    assert parser.feed("\n\n") == []
    assert parser.feed("answer") == [("content", "answer")]


@pytest.mark.parametrize(
    ("content", "split"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", ("why", "because")),
        ("why\n</think>\n\nbecause", ("why", "because")),
        ("<think>\n\n</think>\n\nbecause", ("", "because")),
        ("<think>a</think>b", ("a", "b")),
        ("say </think>. then\n</think>\n\nb", ("say </think>. then", "b")),
        ("plain", (None, "plain")),
        ("<think>never closed", (None, "<think>never closed")),
    ],
)
def test_an_earlier_turn_is_split(content, split):
    assert split_history(content) == split


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        (["a", "b", "</think>", "\n\n", "c"], 3),
        (["a", "</think>\n\n", "c"], 2),
        (["a", "</think>", ".", "b"], 5),
        (["a", "</think>", ".", "</think>", ".", "b"], 7),
        (["a", "</think>"], 2),
        (["a", "b"], 3),
    ],
)
def test_thoughts_are_counted_in_tokens(play, pieces, tokens):
    # The stop token behind them counts where it is generated inside the thoughts.
    assert play(pieces, thinking=True).session.reasoning_tokens == tokens
