"""A norm after a residual sum: the same whether the summand is a tensor or a product."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import Tensor, get_device
from ninfer_runtime.layers.linear import Linear
from ninfer_runtime.layers.norm import OffsetRMSNorm

DEVICE = get_device("cpu")


@pytest.mark.parametrize("for_products", [False, True])
def test_a_product_is_added_as_its_tensor_is(for_products: bool) -> None:
    rng = np.random.default_rng(3)

    def draw(*shape: int):
        return DEVICE.from_host(rng.standard_normal(shape).astype(np.float32))

    x, rows, output, norm = draw(3, 8), draw(3, 5), Linear(draw(8, 5)), OffsetRMSNorm(draw(8), 1e-6)
    sums = [DEVICE.from_host(x.array.copy()) for _ in range(2)]
    expected = norm(sums[0], output(rows))
    found = norm(sums[1], output.later(rows), for_products=for_products)
    np.testing.assert_allclose(sums[1].array, sums[0].array, atol=1e-6)
    np.testing.assert_allclose(found.array, expected.array, atol=1e-5)
    assert not np.array_equal(sums[0].array, x.array)


def test_a_product_that_is_left_for_later_shows_its_input() -> None:
    seen: list[Tensor] = []
    x = DEVICE.from_host(np.ones((2, 4), np.float32))
    product = Linear(DEVICE.from_host(np.ones((3, 4), np.float32)), seen.append).later(x)
    assert seen == [x]
    assert product.shape == (2, 3)
    np.testing.assert_array_equal(product.compute().array, np.full((2, 3), 4, np.float32))
