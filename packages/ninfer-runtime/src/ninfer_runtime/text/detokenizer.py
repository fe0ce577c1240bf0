"""From token ids to text, one token at a time."""

from __future__ import annotations

import codecs

from ninfer_runtime.text.tokenizer import Tokenizer


class Detokenizer:
    """Decodes the bytes of tokens as UTF-8.

    A character that is split over tokens appears when its last byte arrives. Invalid bytes become
    one U+FFFD for each maximal part of a character (Unicode Standard, section 3.9); nothing makes
    the decoder fail or wait for ever.

    Args:
        tokenizer: Knows the bytes of every token.
        show_special: Show the spelling of special tokens, which are invisible otherwise.
    """

    def __init__(self, tokenizer: Tokenizer, *, show_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._show_special = show_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Return the characters that `token_id` completes."""
        if self._tokenizer.is_special(token_id) and not self._show_special:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """End the text: an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
