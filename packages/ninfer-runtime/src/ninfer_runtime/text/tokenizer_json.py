"""Reading ``tokenizer.json``: what of the format is supported, and what it says about tokens.

Supported is byte-level BPE as the Qwen family uses it. Everything that would change token ids
without being noticed is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_format.errors import ArtifactError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token beside the BPE vocabulary.

    Attributes:
        id: Its id.
        content: Its spelling.
        special: It steers the model and is not part of what people read.
    """

    id: int
    content: str
    special: bool


def _bad(
    role: str, message: str, *, expected: object = None, found: object = None
) -> ArtifactError:
    return ArtifactError("schema", f"{role}: {message}", expected=expected, found=found)


def read_object(role: str, data: bytes) -> dict[str, Any]:
    """Parse a resource that has to be a JSON object.

    Args:
        role: Name of the resource, for the message.
        data: Its bytes, UTF-8.

    Raises:
        ArtifactError: It is something else.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(role, f"not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad(role, "wrong value", expected="an object", found=type(value).__name__)
    return value


def check_tokenizer(document: Mapping[str, Any]) -> None:
    """Refuse a tokenizer that is not byte-level BPE, or that has options which are not supported.

    Args:
        document: The parsed ``tokenizer.json``.

    Raises:
        ArtifactError: It names the member, what is supported and what was found.
    """
    model = document.get("model")
    if not isinstance(model, Mapping) or model.get("type") != "BPE":
        found = model.get("type") if isinstance(model, Mapping) else model
        raise _bad(TOKENIZER, "model.type", expected="'BPE'", found=repr(found))
    if not isinstance(model.get("vocab"), Mapping) or not isinstance(model.get("merges"), list):
        raise _bad(TOKENIZER, "model must have an object 'vocab' and an array 'merges'")
    for key in ("ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise _bad(
                TOKENIZER, f"model.{key}", expected="absent or empty", found=repr(model[key])
            )
    _check_type(document, "normalizer", (None, "NFC"))
    _check_type(document, "decoder", (None, "ByteLevel"))
    _check_type(document, "post_processor", (None, "ByteLevel"))
    _check_pre_tokenizer(document)


def _type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, Mapping) else value


def _check_type(document: Mapping[str, Any], member: str, allowed: tuple[str | None, ...]) -> None:
    found = _type_of(document.get(member))
    if found not in allowed:
        expected = " or ".join(str(name) for name in allowed)
        raise _bad(TOKENIZER, f"{member}.type", expected=expected, found=repr(found))


def _check_pre_tokenizer(document: Mapping[str, Any]) -> None:
    """Check for a split by one pattern that isolates its matches, then bytes."""
    sequence = document.get("pre_tokenizer")
    steps = sequence.get("pretokenizers") if isinstance(sequence, Mapping) else None
    types = [_type_of(step) for step in steps] if isinstance(steps, list) else None
    if not isinstance(steps, list) or types != ["Split", "ByteLevel"]:
        raise _bad(TOKENIZER, "pre_tokenizer", expected="Sequence[Split, ByteLevel]", found=types)
    split, byte_level = steps
    if split.get("behavior") != "Isolated" or split.get("invert"):
        raise _bad(TOKENIZER, "the Split step must isolate its matches and not be inverted")
    if byte_level.get("add_prefix_space") or byte_level.get("use_regex", True):
        raise _bad(TOKENIZER, "the ByteLevel step must not add a space nor use its own pattern")


def read_added_tokens(
    document: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[AddedToken, ...]:
    """Collect the added tokens of both tokenizer files.

    Args:
        document: The parsed ``tokenizer.json``.
        config: The parsed ``tokenizer_config.json``.

    Returns:
        The tokens by ascending id.

    Raises:
        ArtifactError: A token is malformed or has an option that is not supported, or the files
            contradict each other.
    """
    tokens: dict[int, AddedToken] = {}
    listed = document.get("added_tokens") or []
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, list) or not all(isinstance(entry, Mapping) for entry in listed):
        raise _bad(TOKENIZER, "added_tokens must be an array of objects")
    if not isinstance(decoder, Mapping):
        raise _bad(TOKENIZER_CONFIG, "added_tokens_decoder must be an object")
    entries: list[tuple[str, Any, Any]] = [(TOKENIZER, entry.get("id"), entry) for entry in listed]
    for key, entry in decoder.items():
        if not key.isascii() or not key.isdecimal():
            raise _bad(TOKENIZER_CONFIG, "added_tokens_decoder", expected="ids as keys", found=key)
        entries.append((TOKENIZER_CONFIG, int(key), entry))
    for role, token_id, entry in entries:
        token = _added_token(role, token_id, entry)
        if tokens.setdefault(token.id, token) != token:
            raise _bad(role, f"added token {token.id} is described in two different ways")
    return tuple(tokens[token_id] for token_id in sorted(tokens))


def _added_token(role: str, token_id: Any, entry: Any) -> AddedToken:
    content = entry.get("content") if isinstance(entry, Mapping) else None
    if not isinstance(token_id, int) or not isinstance(content, str) or not content:
        raise _bad(role, f"added token {token_id!r} needs an integer id and a content")
    for flag in ("single_word", "lstrip", "rstrip", "normalized"):
        if entry.get(flag):
            raise _bad(role, f"added token {content!r}: {flag}", expected="false", found="true")
    return AddedToken(token_id, content, bool(entry.get("special")))
