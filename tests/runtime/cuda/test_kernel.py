from __future__ import annotations

import pytest

from ninfer_runtime.cuda.kernel import ARCHITECTURES, architecture_of, capability_of, headers_of
from ninfer_runtime.cuda.target import TYPICAL_TARGETS
from ninfer_runtime.errors import DeviceError


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100"),
        ((10, 3), "sm_100"),
        ((12, 0), "sm_120"),
        ((12, 1), "sm_120"),
    ],
)
def test_a_device_gets_the_newest_code_that_runs_on_it(capability, architecture):
    assert architecture_of(capability) == architecture


def test_a_gpu_before_ampere_is_refused():
    with pytest.raises(DeviceError, match=r"compute capability 7\.5, at least 8\.0") as caught:
        architecture_of((7, 5))
    assert caught.value.hint == "use the cpu backend"


def test_a_generation_that_no_kernel_knows_is_refused():
    with pytest.raises(DeviceError, match=r"no kernel knows GPUs of compute capability 14\.0"):
        architecture_of((14, 0))


def test_every_architecture_has_a_capability_and_a_typical_target():
    assert tuple(TYPICAL_TARGETS) == ARCHITECTURES
    for architecture, target in TYPICAL_TARGETS.items():
        assert target.capability == capability_of(architecture)
        assert target.architecture == architecture
    with pytest.raises(DeviceError, match="unknown architecture 'sm_75'"):
        capability_of("sm_75")


def test_shared_memory_is_divided_among_blocks():
    hopper = TYPICAL_TARGETS["sm_90a"]
    assert hopper.shared_for(1) == 227 * 1024
    assert hopper.shared_for(2) == 113 * 1024


def test_headers_are_found_through_headers(package):
    include = package / "cuda" / "include" / "ninfer"
    (include / "a.cuh").write_text('#include "ninfer/b.cuh"\n')
    (include / "b.cuh").write_text('  #  include "ninfer/a.cuh"\n')
    assert list(headers_of('int x;\n#include "ninfer/a.cuh"\n')) == ["ninfer/a.cuh", "ninfer/b.cuh"]


def test_a_missing_header_is_named():
    with pytest.raises(DeviceError, match=r"ninfer/absent\.cuh does not exist"):
        headers_of('#include "ninfer/absent.cuh"')
