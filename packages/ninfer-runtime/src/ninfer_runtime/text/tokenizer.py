"""The tokenizer: text to token ids, token ids to bytes, and which tokens control the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

from ninfer_format.errors import ArtifactError
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.text.tokenizer_json import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    AddedToken,
    check_tokenizer,
    read_added_tokens,
    read_object,
)


def _byte_alphabet() -> dict[str, int]:
    """Return the characters by which byte-level vocabularies spell bytes.

    Printable Latin-1 characters stand for themselves, the other bytes for the code points from
    256 on, in ascending order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


class Tokenizer:
    """Byte-level BPE with added tokens.

    Args:
        document: The parsed ``tokenizer.json``.
        config: The parsed ``tokenizer_config.json``.

    Raises:
        ArtifactError: The files are malformed, contradict each other or use an option that is not
            supported.
    """

    def __init__(self, document: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        check_tokenizer(document)
        self.added_tokens = read_added_tokens(document, config)
        self._added = {token.id: token for token in self.added_tokens}
        self._ids_by_content = {token.content: token.id for token in self.added_tokens}
        vocabulary = _ordinary_vocabulary(document["model"]["vocab"], self.added_tokens)
        self._spellings = _spellings(vocabulary, self.added_tokens)
        self._bpe = _ordinary_encoder(document, vocabulary)
        self._control = _control_pattern(self.added_tokens)

    @classmethod
    def from_resources(
        cls, tokenizer_json: bytes, tokenizer_config: bytes | None = None
    ) -> Tokenizer:
        """Build a tokenizer from the files of a checkpoint.

        Args:
            tokenizer_json: Bytes of ``tokenizer.json``.
            tokenizer_config: Bytes of ``tokenizer_config.json``, if there is one.

        Raises:
            ArtifactError: As the class.
        """
        config = {} if tokenizer_config is None else read_object(TOKENIZER_CONFIG, tokenizer_config)
        return cls(read_object(TOKENIZER, tokenizer_json), config)

    @property
    def public_tokens(self) -> int:
        """Number of tokens; their ids are 0 to this minus 1. A model may have padding beyond."""
        return len(self._spellings)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text; no spelling in it becomes a control token.

        Raises:
            RequestError: ``invalid_prompt``: the text has a lone surrogate.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                RequestErrorKind.INVALID_PROMPT,
                f"the text holds the lone surrogate {text[error.start]!r}, which is no character",
            ) from error
        # Unlike the call for one text, the one for several lets other threads run meanwhile.
        (encoding,) = self._bpe.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def split_controls(self, text: str) -> list[str | int]:
        """Cut text at the spellings of added tokens.

        Returns:
            In order, ids of added tokens and the pieces of ordinary text between them.
        """
        pieces: list[str | int] = []
        end = 0
        for match in self._control.finditer(text):
            if match.start() > end:
                pieces.append(text[end : match.start()])
            pieces.append(self._ids_by_content[match.group()])
            end = match.end()
        if end < len(text):
            pieces.append(text[end:])
        return pieces

    def encode_with_controls(self, text: str) -> list[int]:
        """Return the ids of text in which spellings of added tokens stand for these tokens.

        Raises:
            RequestError: As `encode`.
        """
        ids: list[int] = []
        for piece in self.split_controls(text):
            ids.extend((piece,) if isinstance(piece, int) else self.encode(piece))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; an added token stands for its spelling.

        Raises:
            IndexError: There is no such token.
        """
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        spelling = self._spellings[token_id]
        if token_id in self._added:
            return spelling.encode()
        return bytes(_ALPHABET[character] for character in spelling)

    def is_special(self, token_id: int) -> bool:
        """Whether a token steers the model and is not part of what people read."""
        added = self._added.get(token_id)
        return added is not None and added.special

    def token_id(self, content: str) -> int | None:
        """Return the id of the added token that is spelled `content`."""
        return self._ids_by_content.get(content)


def _ordinary_vocabulary(
    vocabulary: Mapping[str, int], added: tuple[AddedToken, ...]
) -> dict[str, int]:
    """Return the BPE vocabulary without the added tokens, which some files list there too."""
    ordinary = dict(vocabulary)
    for token in added:
        if ordinary.pop(token.content, token.id) != token.id:
            raise ArtifactError(
                "schema", f"{TOKENIZER}: {token.content!r} has two ids, one of them {token.id}"
            )
    foreign = set("".join(ordinary)) - _ALPHABET.keys()
    if foreign:
        raise ArtifactError(
            "schema", f"{TOKENIZER}: {min(foreign)!r} in model.vocab does not spell a byte"
        )
    return ordinary


def _spellings(vocabulary: Mapping[str, int], added: tuple[AddedToken, ...]) -> list[str]:
    """Return the spelling of every token by id; ids must be 0 to n-1, each used once."""
    pairs = [(token_id, spelling) for spelling, token_id in vocabulary.items()]
    pairs += [(token.id, token.content) for token in added]
    if any(type(token_id) is not int for token_id, _ in pairs):
        raise ArtifactError("schema", f"{TOKENIZER}: a token id is not an integer")
    pairs.sort()
    for expected, (token_id, spelling) in enumerate(pairs):
        if token_id != expected:
            raise ArtifactError(
                "schema",
                f"{TOKENIZER}: token ids must be 0 to n-1 without gaps and repetitions; "
                f"{spelling!r} has the wrong one",
                expected=expected,
                found=token_id,
            )
    return [spelling for _, spelling in pairs]


def _ordinary_encoder(
    document: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> tokenizers.Tokenizer:
    """Build the encoder for ordinary text: the BPE of the file without any added token."""
    ordinary = {
        **document,
        "model": {**document["model"], "vocab": vocabulary},
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(ordinary))
    except Exception as error:  # The library raises plain exceptions for every fault of a file.
        raise ArtifactError("schema", f"{TOKENIZER}: {error}") from error


def _control_pattern(added: tuple[AddedToken, ...]) -> re.Pattern[str]:
    """Return a pattern of all spellings; where two start together, the longer one matches."""
    contents = sorted((token.content for token in added), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, contents)) if contents else "(?!)")
