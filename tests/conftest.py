"""What tests of several packages share."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from ninfer_runtime.device.cuda import CudaDevice

# Test machines share their processors; how long an example takes says nothing there.
settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

# The matrices of the tests are small, and OpenBLAS threads that wait for each other on a busy machine
# cost far more than they gain. NumPy reads this when it is first imported, here and in subprocesses.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Commands that tests start write into a buffer, as they do for users.
os.environ.pop("PYTHONUNBUFFERED", None)

CHECKPOINT = Path(__file__).parent / "data" / "tiny-model" / "checkpoint"
TINY_MOE_TOOL = Path(__file__).parents[1] / "tools" / "tiny_moe.py"


@pytest.fixture(scope="session")
def tiny_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint of the tiny mixture of experts, with fused experts; read only."""
    return _write_tiny_moe(tmp_path_factory.mktemp("tiny-moe"), per_expert=False)


@pytest.fixture(scope="session")
def tiny_moe_per_expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with three tensors for each expert; read only."""
    return _write_tiny_moe(tmp_path_factory.mktemp("tiny-moe-per-expert"), per_expert=True)


def _write_tiny_moe(parent: Path, *, per_expert: bool) -> Path:
    folder = parent / "tiny-moe"
    runpy.run_path(str(TINY_MOE_TOOL))["write"](folder, per_expert=per_expert)
    return folder


@pytest.fixture(scope="session")
def bf16_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of the tiny model with the very values of its checkpoint."""
    from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
    from ninfer_quant.pipeline.run import RunOptions, run_conversion
    from ninfer_quant.recipes.loading import load_recipe

    output = tmp_path_factory.mktemp("bf16-model") / "tiny-bf16.ninfer"
    request = ConversionRequest(
        model=CHECKPOINT,
        recipe=load_recipe("qwen3_8_27b_bf16"),
        components=("text",),
        name="tiny-bf16",
    )
    run_conversion(plan_conversion(request), RunOptions(output), lambda num_bytes, item: None)
    return output


@pytest.fixture(scope="session")
def gpu() -> CudaDevice:
    """The GPU; without one a test is skipped for the reason that users would be told."""
    from ninfer_runtime.device import get_device
    from ninfer_runtime.errors import DeviceError

    try:
        device = get_device("cuda")
    except DeviceError as error:
        # `--require-gpu` makes a failure of it.
        pytest.skip(str(error))
    return cast("CudaDevice", device)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail if a test was skipped, or if there was none",
    )
    parser.addoption(
        "--cases", type=int, metavar="N", help="run at most N cases of each test, evenly spread"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases where a tool makes tests slow, but no test: of those that were chosen."""
    most = config.getoption("--cases")
    if most is None:
        return
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = set()
    for cases in tests.values():
        count = min(most, len(cases))
        kept |= {cases[i * len(cases) // count] for i in range(count)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let no missing GPU pass for a success."""
    if not session.config.getoption("--require-gpu") or exitstatus not in (0, 5):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if skipped or session.testscollected == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
