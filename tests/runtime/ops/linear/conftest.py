from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.runtime.stored_weights import random_stored


@pytest.fixture
def stored_weight(rng: np.random.Generator):
    """A random stored matrix: its codec and its bytes; values near those of a trained weight."""
    return partial(random_stored, rng)
