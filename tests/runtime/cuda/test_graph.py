"""Recording launches, with a driver that only notes what it is asked for."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from ninfer_runtime.cuda import graph as graph_module
from ninfer_runtime.cuda.graph import Graph
from ninfer_runtime.errors import DeviceFailedError


class Code(int):
    name = "CUDA_ERROR_UNKNOWN"


class Driver:
    """Gives handles, and fails in the calls that are named."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUstream = int

    def __init__(self, failing=()):
        self.calls = []
        self.failing = failing

    def __getattr__(self, name):
        results = {"cuStreamEndCapture": ["graph"], "cuGraphInstantiate": ["executable"]}

        def call(*arguments):
            self.calls.append(name)
            if name in self.failing:
                return Code(1), *[None for _ in results.get(name, [])]
            return Code(0), *results.get(name, [])

        return call


@pytest.fixture
def driver(monkeypatch):
    def install(*failing):
        driver = Driver(failing)
        monkeypatch.setattr(graph_module, "driver", lambda: driver)
        return driver

    return install


def test_the_result_of_the_recorded_run_is_kept_until_the_graph_is_closed(driver):
    calls = driver().calls
    graph = Graph(5, lambda: "logits", memory="pool")
    assert graph.result == "logits"
    graph.replay()
    graph.close()
    graph.close()
    assert graph.result is None
    assert calls == [
        "cuStreamBeginCapture",
        "cuStreamEndCapture",
        "cuGraphInstantiate",
        "cuGraphDestroy",
        "cuGraphUpload",
        "cuGraphLaunch",
        "cuGraphExecDestroy",
    ]


def test_no_garbage_is_collected_while_recording(driver):
    driver()
    seen = []
    Graph(5, lambda: seen.append(gc.isenabled())).close()
    assert seen == [False]
    assert gc.isenabled()


def test_work_that_fails_ends_the_recording_and_leaves_nothing(driver):
    calls = driver().calls

    def work():
        raise ValueError("shape")

    with pytest.raises(ValueError, match="shape"):
        Graph(5, work)
    assert calls == ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy"]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("failing", "last"),
    [
        ("cuStreamEndCapture", "cuStreamEndCapture"),
        ("cuGraphInstantiate", "cuGraphDestroy"),
        ("cuGraphUpload", "cuGraphExecDestroy"),
    ],
)
def test_a_refusal_of_the_driver_leaves_nothing(driver, failing, last):
    calls = driver(failing).calls
    with pytest.raises(DeviceFailedError, match="CUDA_ERROR_UNKNOWN"):
        Graph(5, lambda: None)
    assert calls[-1] == last
