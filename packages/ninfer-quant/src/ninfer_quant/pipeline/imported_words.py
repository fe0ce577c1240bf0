"""Objects of words that are imported: which matrices may share one, and how they are stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ninfer_format.dtypes import EXL3_MUL1, NVFP4
from ninfer_quant.errors import RecipeError
from ninfer_quant.recipes.selection import IMPORT_ENCODED, Selection
from ninfer_quant.sources.encoded import EncodedSource


def may_be_packed(members: Sequence[Selection]) -> bool:
    """Whether imported words can be one object without being asked for.

    Matrices with divisors of their own are stacked only in groups that a recipe asks for. Trellis
    codes need one rate, and one set of input multipliers or equal heights.
    """
    encoding = members[0].encoding
    if encoding.method != IMPORT_ENCODED:
        return True
    encoded = _encoded_members(members)
    if encoded is None:
        return False
    if encoding.format == NVFP4.name:
        return _have_one_divisor(encoded)
    if encoding.format == EXL3_MUL1.name:
        heights = {source.shape[0] for source in encoded}
        return _rate(encoded) is not None and (_have_one_input(encoded) or len(heights) == 1)
    return True


def stacking(members: Sequence[Selection]) -> tuple[int, int | None]:
    """Number of matrices of a stack, and the rate of a trellis code, of imported words.

    Raises:
        RecipeError: The members cannot be stacked.
    """
    encoding = members[0].encoding
    encoded = _encoded_members(members) if encoding.method == IMPORT_ENCODED else None
    if encoded is None or any(source.format != encoding.format for source in encoded):
        return 1, None
    rate = _rate(encoded)
    if encoding.format == EXL3_MUL1.name:
        if rate is None:
            rates = sorted({str(source.bitrate_half_bits) for source in encoded})
            raise RecipeError(f"one object cannot have several rates in half bits: {rates}")
        is_stack = not _have_one_input(encoded)
    else:
        is_stack = encoding.format == NVFP4.name and not _have_one_divisor(encoded)
    if not is_stack or len(encoded) == 1:
        return 1, rate
    heights = [source.shape[0] for source in encoded]
    if len(set(heights)) > 1:
        raise RecipeError(
            f"matrices with different {'divisors' if rate is None else 'input multipliers'} are "
            f"stacked only if they have equal heights, found {heights}"
        )
    return len(encoded), rate


def _encoded_members(members: Sequence[Selection]) -> list[EncodedSource] | None:
    encoded = [member.values().encoded for member in members]
    known = [source for source in encoded if source is not None]
    return known if len(known) == len(encoded) else None


def _have_one_divisor(encoded: Sequence[EncodedSource]) -> bool:
    divisors = {source.weight_divisor() for source in encoded}
    return len(divisors) == 1 and None not in divisors


def _have_one_input(encoded: Sequence[EncodedSource]) -> bool:
    found = [source.input_scales() for source in encoded]
    known = [scales for scales in found if scales is not None]
    same = [scales is known[0] or np.array_equal(scales, known[0]) for scales in known]
    return len(known) == len(found) and all(same)


def _rate(encoded: Sequence[EncodedSource]) -> int | None:
    rates = {source.bitrate_half_bits for source in encoded}
    return rates.pop() if len(rates) == 1 else None
