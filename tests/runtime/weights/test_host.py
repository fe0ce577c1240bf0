"""Weights of the CPU: float32, in the memory order in which each is used."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_runtime.device import Tensor, get_device
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.weights.host import HostWeights

INPUT = ("text/input",)
PARAMETERS = (
    LogicalParameter("text/embedding", (8, 4)),
    LogicalParameter("text/head", (8, 4), INPUT),
    LogicalParameter("text/q", (3, 4), INPUT),
    LogicalParameter("text/k", (5, 4), INPUT),
    LogicalParameter("text/norm", (4,)),
    LogicalParameter("text/q2", (3, 4), INPUT),
)


class Source:
    """A `ParameterSource` in which every parameter has its number for all values."""

    def __init__(self, tied: bool = False) -> None:
        self.tied = tied

    def read(self, parameter: LogicalParameter) -> np.ndarray:
        return np.full(parameter.shape, PARAMETERS.index(parameter), np.float32)

    def is_shared(self, name: str, other: str) -> bool:
        return self.tied and {name, other} == {"text/embedding", "text/head"}


@pytest.fixture
def store() -> HostWeights:
    return HostWeights(PARAMETERS, Source(), get_device("cpu"))


def test_projections_are_one_matrix_in_fortran_order(store: HostWeights):
    (weight,) = store.projections(["text/k", "text/q"])
    np.testing.assert_array_equal(weight.array, np.repeat([3, 2], [5, 3])[:, None] * np.ones(4))
    assert weight.array.flags.f_contiguous
    (alone,) = store.projections(["text/q"])
    assert alone.shape == (3, 4)
    assert alone.array.flags.f_contiguous


def test_a_gate_lies_above_what_it_gates(store: HostWeights):
    weight = store.gated("text/q", "text/q2")
    (both,) = weight.matrices
    assert isinstance(both, Tensor)
    assert (weight.shape, weight.in_turns) == ((3, 4), False)
    np.testing.assert_array_equal(both.array[:, 0], [2] * 3 + [5] * 3)
    assert both.array.flags.f_contiguous


def test_everything_else_is_in_c_order(store: HostWeights):
    bank, stacked = store.bank(["text/q", "text/k"]), store.tensor("text/q", "text/k")
    for tensor in (bank, stacked):
        assert tensor.shape == (8, 4)
        assert tensor.array.flags.c_contiguous
        np.testing.assert_array_equal(tensor.array[:, 0], [2] * 3 + [3] * 5)
    assert store.table("text/embedding").array.flags.c_contiguous
    assert store.tensor("text/norm").shape == (4,)


@pytest.mark.parametrize("tied", [False, True])
def test_a_table_that_is_also_the_head_counts_once(tied: bool):
    store = HostWeights(PARAMETERS, Source(tied), get_device("cpu"))
    assert store.is_shared("text/embedding", "text/head") == tied
    assert store.num_bytes == 4 * (32 + (0 if tied else 32) + 12 + 20 + 4 + 12)
    # The largest projection is there twice while its order is changed.
    assert store.loading_bytes == store.num_bytes + 4 * (20 if tied else 32)
