"""Tokenizer files in the form that the runtime relies on.

What the runtime cannot execute is refused by the runtime's own tokenizer, which is built here once
from what will be stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ninfer_format.errors import ArtifactError
from ninfer_quant.errors import ConversionError
from ninfer_quant.resources.json_file import Change, ResourceFile, dump_json
from ninfer_runtime.text.tokenizer import Tokenizer
from ninfer_runtime.text.tokenizer_json import check_tokenizer

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How the family splits text into words; combining marks belong to the letter before them."""

SPLIT_PATTERN_WITHOUT_MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What newer exports of the same tokenizers say instead."""

PADDING = "<|endoftext|>"
"""The token that fills up shorter sequences."""


def normalise_tokenizer(file: ResourceFile) -> tuple[bytes, list[Change]]:
    """Bring the split pattern of ``tokenizer.json`` to the family's form.

    Returns:
        The bytes to store, and what was changed.

    Raises:
        ConversionError: The tokenizer works in a way that the runtime does not implement.
    """
    document = file.parse()
    try:
        check_tokenizer(document)
    except ArtifactError as error:
        raise ConversionError(str(error), path=file.path) from error
    pattern = document["pre_tokenizer"]["pretokenizers"][0].get("pattern")
    if not isinstance(pattern, dict) or not isinstance(pattern.get("Regex"), str):
        file.refuse("pre_tokenizer.Split.pattern", pattern, "a Regex")
    if pattern["Regex"] == SPLIT_PATTERN:
        return file.data, []
    is_known = pattern["Regex"] == SPLIT_PATTERN_WITHOUT_MARKS
    pattern["Regex"] = SPLIT_PATTERN
    which = "split pattern" if is_known else "unknown split pattern"
    return dump_json(document), [Change(f"{file.role}: replaced the {which}", is_known)]


def normalise_tokenizer_config(
    file: ResourceFile, document: Mapping[str, Any]
) -> tuple[bytes, list[Change]]:
    """Set what the runtime relies on in ``tokenizer_config.json``.

    Args:
        file: The file.
        document: Content of ``tokenizer.json``.

    Returns:
        The bytes to store, and what was changed.

    Raises:
        ConversionError: It is not a JSON object.
    """
    config = file.parse()
    wanted: dict[str, Any] = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "pad_token": PADDING,
    }
    if not config.get("added_tokens_decoder"):
        wanted["added_tokens_decoder"] = {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in document.get("added_tokens") or []
        }
    changed = [key for key, value in wanted.items() if key not in config or config[key] != value]
    if not changed:
        return file.data, []
    return dump_json(config | wanted), [Change(f"{file.role}: set {', '.join(changed)}")]


def count_public_tokens(tokenizer: bytes, tokenizer_config: bytes, vocab_size: int) -> int:
    """Number of token ids that have a meaning: they are 0 to n-1.

    Args:
        tokenizer: ``tokenizer.json`` as it will be stored.
        tokenizer_config: ``tokenizer_config.json`` as it will be stored.
        vocab_size: Rows of the embedding, V.

    Raises:
        ConversionError: The files contradict each other, ids are missing, or there are more than
            `vocab_size`.
    """
    try:
        built = Tokenizer.from_resources(tokenizer, tokenizer_config)
    except ArtifactError as error:
        raise ConversionError(str(error)) from error
    if built.public_tokens > vocab_size:
        raise ConversionError(
            f"the tokenizer has {built.public_tokens} tokens, the embedding {vocab_size} rows"
        )
    if built.token_id(PADDING) is None:
        raise ConversionError(f"the tokenizer has no added token {PADDING}, which is the padding")
    return built.public_tokens


def special_token_ids(tokenizer: bytes, tokenizer_config: bytes) -> tuple[int, ...]:
    """Ids of the special tokens, ascending.

    Args:
        tokenizer: ``tokenizer.json`` as it will be stored.
        tokenizer_config: ``tokenizer_config.json`` as it will be stored.
    """
    added = json.loads(tokenizer).get("added_tokens") or []
    ids = {token["id"] for token in added if token.get("special")}
    decoder = json.loads(tokenizer_config).get("added_tokens_decoder") or {}
    ids |= {int(token) for token, settings in decoder.items() if settings.get("special")}
    return tuple(sorted(ids))
