"""Incremental UTF-8 against Python's decoder."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_runtime.text.detokenizer import Detokenizer

# Bytes that are interesting in UTF-8: leads, continuations, surrogates, overlong forms, ASCII.
LONE = b"A \x80 \x9f \xa0 \xbf \xc0 \xc2 \xe0 \xed \xef \xf0 \x90 \xf4 \x8f \xf5 \xff".split()
BYTES = st.sampled_from([*LONE, "é".encode(), "日".encode(), "🙂".encode()])


@settings(deadline=None)
@given(pieces=st.lists(st.lists(BYTES, min_size=1, max_size=4).map(b"".join), max_size=12))
@example(pieces=[b"\xf0\x9f", b"A"])
@example(pieces=[b"\xed", b"\xa0", b"\x80"])
def test_any_partition_decodes_like_the_whole(scripted, pieces):
    script = scripted(pieces)
    decoder = Detokenizer(script)
    shown = [decoder.feed(token_id) for token_id in script.ids] + [decoder.finish()]
    assert "".join(shown) == b"".join(pieces).decode("utf-8", "replace")


@settings(deadline=None)
@given(text=st.text(max_size=20), data=st.data())
def test_valid_text_never_shows_a_replacement_and_never_waits(scripted, text, data):
    encoded = text.replace("\ufffd", "").encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)))))
    ends = [*cuts, len(encoded)]
    pieces = [encoded[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]
    script = scripted(pieces)
    decoder = Detokenizer(script)
    shown, read = "", b""
    for piece, token_id in zip(pieces, script.ids, strict=True):
        shown += decoder.feed(token_id)
        read += piece
        # Everything that is complete is there.
        assert shown == read.decode("utf-8", "ignore")
    assert decoder.finish() == ""


def test_report_d02_malformed_bytes_do_not_end_anything(play):
    played = play([b"\xf0\x9f", b"A"])
    assert played.session.content == "\ufffdA"
    assert played.session.finish_reason == "stop_token"
    assert play(["fine"]).session.content == "fine"


@pytest.mark.parametrize("tail", [b"\xf0", b"\xf0\x9f\x99", b"\xe6\x97", b"\xc3"])
def test_an_incomplete_tail_becomes_one_replacement(play, tail):
    assert play([b"a", tail]).session.content == "a\ufffd"


def test_report_d27_characters_split_over_tokens_arrive_whole(play):
    encoded = "é—日".encode()
    pieces = [bytes([byte]) for byte in encoded] + [f"{n} " for n in range(50)]
    played = play(pieces)
    assert played.session.content == "é—日" + "".join(f"{n} " for n in range(50))
    assert "\ufffd" not in played.text("content")
    assert [delta.text for delta in played.deltas[:3]] == ["é", "—", "日"]
    assert played.session.finish_reason == "stop_token"


def test_special_tokens_are_shown_only_when_asked_for(tokenizer):
    ids = tokenizer.encode_with_controls("<think>a<|im_end|>")
    hidden, shown = Detokenizer(tokenizer), Detokenizer(tokenizer, show_special=True)
    assert "".join(map(hidden.feed, ids)) == "<think>a"
    assert "".join(map(shown.feed, ids)) == "<think>a<|im_end|>"
