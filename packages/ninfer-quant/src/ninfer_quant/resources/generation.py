"""``generation_config.json``: the tokens that end an answer."""

from __future__ import annotations

from ninfer_quant.resources.json_file import ResourceFile


def check_generation_config(file: ResourceFile, public_tokens: int) -> None:
    """Check that ``eos_token_id`` names tokens; sampling values are kept but not used.

    Args:
        file: The file.
        public_tokens: Number of token ids that have a meaning.

    Raises:
        ConversionError: It is absent, empty or not a list of token ids.
    """
    value = file.parse().get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    if not ids or not all(type(item) is int and 0 <= item < public_tokens for item in ids):
        file.refuse("eos_token_id", value, f"token ids below {public_tokens}, at least one")
