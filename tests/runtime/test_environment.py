from pathlib import Path

import pytest

from ninfer_format.errors import ExitCode, UsageError
from ninfer_runtime import environment

READERS = {
    "NINFER_MODEL": environment.model,
    "NINFER_BACKEND": environment.backend,
    "NINFER_LOG_LEVEL": environment.log_level,
    "NINFER_API_KEY": environment.api_key,
}


@pytest.mark.parametrize("name", READERS)
def test_an_unset_variable_is_none(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    assert READERS[name]() is None


@pytest.mark.parametrize("value", ["", " ", "\t"])
@pytest.mark.parametrize("name", READERS)
def test_an_empty_variable_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name} is empty") as caught:
        READERS[name]()
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("name", ["NINFER_BACKEND", "NINFER_LOG_LEVEL"])
def test_an_unknown_value_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "fast")
    with pytest.raises(UsageError, match=f"{name} is 'fast', expected one of"):
        READERS[name]()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NINFER_MODEL", "models/m.ninfer", Path("models/m.ninfer")),
        ("NINFER_MODEL", "~/m.ninfer", Path.home() / "m.ninfer"),
        ("NINFER_BACKEND", "cpu", "cpu"),
        ("NINFER_LOG_LEVEL", "trace", "trace"),
        ("NINFER_API_KEY", "secret", "secret"),
    ],
)
def test_a_value_is_read(monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)
    assert READERS[name]() == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NINFER_CACHE_DIR": "/data/cache"}, Path("/data/cache/kernels")),
        ({"XDG_CACHE_HOME": "/home/cache"}, Path("/home/cache/ninfer/kernels")),
        ({"XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "ninfer" / "kernels"),
        ({}, Path.home() / ".cache" / "ninfer" / "kernels"),
    ],
)
def test_kernels_are_kept_in_the_cache_directory(monkeypatch, variables, expected):
    for name in ("NINFER_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.kernel_cache_dir() == expected


def test_an_empty_cache_directory_is_refused(monkeypatch):
    monkeypatch.setenv("NINFER_CACHE_DIR", "")
    with pytest.raises(UsageError, match="NINFER_CACHE_DIR is empty"):
        environment.kernel_cache_dir()


def test_no_other_module_reads_our_variables():
    source = Path(environment.__file__).parent
    readers = [
        path
        for path in source.rglob("*.py")
        if "NINFER_" in (text := path.read_text(encoding="utf-8"))
        and ("os.environ" in text or "getenv" in text)
    ]
    assert readers == [Path(environment.__file__)]
