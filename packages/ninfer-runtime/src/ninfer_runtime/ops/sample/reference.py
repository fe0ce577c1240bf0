"""NumPy meaning of `sample`: row by row, by the functions of the requests' sampler."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.sampling.distribution import penalized, processed_distribution
from ninfer_runtime.sampling.params import MAX_CANDIDATES, SamplingParams
from ninfer_runtime.sampling.random import Purpose, uniform


def sample(logits: Tensor, *tensors: Tensor, public_tokens: int) -> None:
    """See the contract in the package; `tensors` are those of `SamplingRows`, then the output."""
    *settings, places, counts, masks, returned, out = (tensor.array for tensor in tensors)
    for r in range(logits.shape[0]):
        values = logits.array[r, :public_tokens]
        *numbers, seed, position, purpose, counts_row, mask_row = (each[r] for each in settings)
        allowed = None if mask_row < 0 else _allowed(masks[mask_row], public_tokens)
        candidates = values if allowed is None else allowed
        if not candidates.size or not np.isfinite(values).all():
            out[r] = -1
            continue
        params = _params(*(each.item() for each in numbers))
        if counts_row >= 0:
            values = penalized(values, params, counts[counts_row, :public_tokens])
        distribution = processed_distribution(
            values if allowed is None else values[allowed], params
        )
        place = int(distribution.ids[0])
        if distribution.ids.size > 1:
            low, high = (int(word) & 0xFFFFFFFF for word in seed)
            u = uniform(high << 32 | low, int(position), Purpose(int(purpose)))
            place = distribution.draw(u)
        out[r] = place if allowed is None else allowed[place]
    is_returned = places >= 0
    returned[places[is_returned]] = out[is_returned]


def _allowed(words: np.ndarray, public_tokens: int) -> np.ndarray:
    """The tokens whose bits are set, ascending."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:public_tokens])


def _params(
    temperature: float, top_k: int, top_p: float, min_p: float, presence: float, frequency: float
) -> SamplingParams:
    return SamplingParams(
        temperature=max(temperature, 0.0),
        top_p=top_p,
        top_k=min(top_k, MAX_CANDIDATES),
        min_p=min_p,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
