from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import DType
from ninfer_runtime.errors import OpArgumentError, UnsupportedOpError
from ninfer_runtime.ops.sample import SamplingRows, sample
from ninfer_runtime.sampling.random import Purpose, uniform

ON_CUDA = True
CANDIDATES = 20
MARGIN = 1e-5
"""Distance from a border between two tokens, as a share of the mass, below which either may come."""


class Setting:
    """Host arrays of random rows."""

    def __init__(self, rng, R, V):
        self.V = V
        self.logits = (4 * rng.standard_normal((R, V))).astype(np.float32)
        self.logits = np.round(self.logits * 8) / 8  # many equal ones
        self.temperature = rng.choice([0, 0.3, 1, 1.7], R).astype(np.float32)
        self.top_k = rng.choice([0, 1, 5, 19, 20, 64], R).astype(np.int32)
        self.top_p = rng.choice([0, 0.5, 0.95, 1], R).astype(np.float32)
        self.min_p = rng.choice([0, 0.05, 1], R).astype(np.float32)
        self.presence_penalty = rng.choice([0, 1.5, -0.5], R).astype(np.float32)
        self.frequency_penalty = rng.choice([0, 0.25], R).astype(np.float32)
        self.seed = rng.integers(0, 1 << 64, R, dtype=np.uint64)
        self.position = rng.integers(0, 1 << 20, R).astype(np.int32)
        self.purpose = rng.integers(0, 6, R).astype(np.int32)
        self.counts_row = rng.integers(-1, 3, R).astype(np.int32)
        self.mask_row = rng.integers(-1, 2, R).astype(np.int32)
        self.returned_place = rng.permutation(2 * R)[:R].astype(np.int32)
        self.returned_place[rng.random(R) < 0.3] = -1
        self.counts = rng.poisson(0.5, (3, V)).astype(np.int32)
        self.returned = np.full(2 * R, -8, np.int32)
        self.allowed = rng.random((2, V)) < 0.1
        self.allowed[:, 0] = True

    def call(self, tensor, device, public_tokens):
        padded = np.zeros((2, -(-self.V // 32) * 32), bool)
        padded[:, : self.V] = self.allowed
        masks = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
        seed = self.seed.view(np.int32).reshape(-1, 2)
        names = list(SamplingRows.__dataclass_fields__)
        host = {name: getattr(self, name) for name in names if name not in ("seed", "masks")}
        host |= {"seed": seed, "masks": masks}
        rows = SamplingRows(*(device.from_host(host[name]) for name in names))
        out = device.from_host(np.full(len(self.logits), -7, np.int32))
        logits = tensor(self.logits, DType.FP32, strided=True)
        found = sample(logits, rows, public_tokens=public_tokens, out=out)
        assert found is out
        tokens = device.to_host(out)
        expected = np.full_like(self.returned, -8)
        is_returned = self.returned_place >= 0
        expected[self.returned_place[is_returned]] = tokens[is_returned]
        np.testing.assert_array_equal(device.to_host(rows.returned), expected)
        return tokens

    def borders(self, r, public_tokens):
        """The tokens that may come, best first, and the share of mass at which each of them ends."""
        x = self.logits[r, :public_tokens].astype(np.float64)
        if self.counts_row[r] >= 0:
            c = self.counts[self.counts_row[r], :public_tokens]
            x = x - float(self.presence_penalty[r]) * (c > 0) - float(self.frequency_penalty[r]) * c
        ids = np.arange(public_tokens)
        if self.mask_row[r] >= 0:
            ids = ids[self.allowed[self.mask_row[r], :public_tokens]]
        order = ids[np.lexsort((ids, -x[ids]))]
        if self.temperature[r] <= 0:
            return order[:1], np.ones(1)
        k = int(self.top_k[r])
        order = order[: k if 1 <= k < CANDIDATES else CANDIDATES]
        weights = np.exp((x[order] - x[order[0]]) / self.temperature[r])
        sums = np.cumsum(weights)
        kept = min(
            np.count_nonzero(weights >= self.min_p[r]),
            np.count_nonzero(sums < self.top_p[r] * sums[-1]) + 1,
        )
        return order[:kept], sums[:kept] / sums[kept - 1]


@pytest.mark.parametrize(
    ("R", "V"), [(200, 1), (200, 30), (200, 1000), (200, 9001), (200, 60_000), (20, 248_320)]
)
def test_draws_follow_the_specification(device, tensor, rng, R, V):
    setting = Setting(rng, R, V)
    public = max(1, V - 7)
    found = setting.call(tensor, device, public)
    compared = 0
    for r, token in enumerate(found):
        ids, ends = setting.borders(r, public)
        purpose = Purpose(int(setting.purpose[r]))
        u = uniform(int(setting.seed[r]), int(setting.position[r]), purpose)
        if np.abs(ends[:-1] - u).min(initial=1) > MARGIN:
            compared += 1
            assert token == ids[np.searchsorted(ends, u, side="right")]
        else:
            assert token in ids
    assert compared >= 0.95 * R


def test_the_frequencies_are_those_of_the_distribution(device, tensor, rng):
    R = 20_000
    setting = Setting(rng, R, 40)
    setting.logits[:] = setting.logits[:1]
    for name, value in {"temperature": 1, "top_k": 6, "top_p": 1, "min_p": 0}.items():
        getattr(setting, name)[:] = value
    setting.counts_row[:], setting.mask_row[:], setting.seed[:] = -1, -1, 12345
    setting.position, setting.purpose[:] = np.arange(R, dtype=np.int32), 1
    found = setting.call(tensor, device, 40)
    ids, ends = setting.borders(0, 40)
    expected = R * np.diff(ends, prepend=0)
    observed = np.array([np.count_nonzero(found == token) for token in ids])
    assert observed.sum() == R
    assert ((observed - expected) ** 2 / expected).sum() < 25  # five degrees of freedom


def test_a_row_that_is_not_finite_gives_minus_one_and_others_do_not_care(device, tensor, rng):
    setting = Setting(rng, 6, 5000)
    before = setting.call(tensor, device, 4990)
    for r, (token, value) in enumerate(
        [(3, np.nan), (4989, np.inf), (2000, -np.inf), (4990, np.nan)]
    ):
        setting.logits[r, token] = value
    after = setting.call(tensor, device, 4990)
    assert after[:3].tolist() == [-1, -1, -1]
    assert after[3:].tolist() == before[3:].tolist()


def test_a_row_without_an_allowed_token_gives_minus_one(device, tensor, rng):
    setting = Setting(rng, 2, 100)
    setting.allowed[1] = False
    setting.mask_row[:] = [0, 1]
    found = setting.call(tensor, device, 100)
    assert setting.allowed[0, found[0]]
    assert found[1] == -1


def test_equal_logits_go_to_the_lower_id(device, tensor, rng):
    setting = Setting(rng, 3, 9000)
    setting.logits[:] = -1
    setting.logits[:, [8000, 5000, 77]] = [[0.0, -0.0, 0.0], [2, 2, 1], [3, 2, 3]]
    setting.temperature[:], setting.counts_row[:], setting.mask_row[:] = 0, -1, -1
    assert setting.call(tensor, device, 9000).tolist() == [77, 5000, 77]


@pytest.mark.parametrize("V", [40_000, 200_000])
def test_many_equal_logits_go_to_the_lower_ids(device, tensor, rng, V):
    """More candidates than any buffer would hold: the first 20 allowed tokens are drawn from."""
    setting = Setting(rng, 64, V)
    setting.logits[:] = 3
    for name, value in {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}.items():
        getattr(setting, name)[:] = value
    setting.counts_row[:], setting.mask_row[:] = -1, np.arange(64) % 3 - 1
    found = setting.call(tensor, device, V)
    everything = np.ones(V, bool)
    for r, token in enumerate(found):
        allowed = everything if r % 3 == 0 else setting.allowed[r % 3 - 1]
        assert token in np.flatnonzero(allowed)[:20]
    assert len(set(found.tolist())) > 15


@pytest.mark.gpu
def test_a_vocabulary_without_a_kernel_is_refused(gpu, rng):
    setting = Setting(rng, 1, 1024 * 256 + 1)
    with pytest.raises(UnsupportedOpError, match="262145 tokens, at most 262144"):
        setting.call(lambda values, *_, **__: gpu.from_host(values), gpu, setting.V)


def test_wrong_arguments_are_refused(device, tensor, rng):
    setting = Setting(rng, 2, 40)
    with pytest.raises(OpArgumentError, match="'public_tokens'"):
        setting.call(tensor, device, 41)
    setting.top_p = setting.top_p[:1]
    with pytest.raises(OpArgumentError, match="'top_p'"):
        setting.call(tensor, device, 40)
