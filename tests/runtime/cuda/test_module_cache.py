from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ninfer_runtime.cuda import module_cache, nvrtc
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.module_cache import ModuleCache


@pytest.fixture
def cache(tmp_path):
    return ModuleCache(tmp_path / "cache")


@pytest.fixture
def compiled(monkeypatch):
    """Instances that were compiled, in order."""
    seen: list[str] = []
    compile_source = nvrtc.compile_source

    def record(kernel, *arguments):
        seen.append(kernel.instance)
        return compile_source(kernel, *arguments)

    monkeypatch.setattr(module_cache, "compile_source", record)
    return seen


def test_a_kernel_is_compiled_once(cache, scale_kernel, compiled):
    assert cache.get(scale_kernel, "sm_80") is None
    first = cache.load(scale_kernel, "sm_80")
    assert cache.load(scale_kernel, "sm_80") == first
    assert cache.get(scale_kernel, "sm_80") == first
    assert len(compiled) == 1


def test_everything_that_decides_the_code_is_in_the_key(
    cache, package, scale_kernel, compiled, monkeypatch
):
    def load(kernel=scale_kernel, architecture="sm_80"):
        cache.load(kernel, architecture)
        return len(compiled)

    assert load() == 1
    assert load(architecture="sm_86") == 2
    assert load(replace(scale_kernel, instance="ninfer::scale_kernel<4>")) == 3
    with (package / "scale.cu").open("a") as source:
        source.write("// changed\n")
    assert load() == 4
    with (package / "cuda/include/ninfer/prelude.cuh").open("a") as header:
        header.write("// changed\n")
    assert load() == 5
    with monkeypatch.context() as patch:
        patch.setattr(module_cache, "nvrtc_version", lambda: (99, 0))
        assert load() == 6
    with monkeypatch.context() as patch:
        patch.setattr(module_cache, "OPTIONS", (*nvrtc.OPTIONS, "-lineinfo"))
        assert load() == 7
    assert load() == 7


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:16],
        lambda content: b"\xff" + content,
        lambda content: content.replace(b"scale_kernel", b"other_kernel", 1),
        lambda content: content.replace(b'"registers": ', b'"registers": 1', 1),
    ],
)
def test_a_damaged_entry_is_compiled_again(cache, scale_kernel, compiled, damage):
    cubin = cache.load(scale_kernel, "sm_80")
    (entry,) = cache.directory.iterdir()
    intact = entry.read_bytes()
    entry.write_bytes(damage(intact))
    assert cache.get(scale_kernel, "sm_80") is None
    assert cache.load(scale_kernel, "sm_80") == cubin
    assert entry.read_bytes() == intact
    assert len(compiled) == 2


def test_a_failed_publication_leaves_nothing_behind(cache, scale_kernel, monkeypatch):
    def refuse(source, target):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    assert cache.load(scale_kernel, "sm_80").data
    assert list(cache.directory.iterdir()) == []


def test_an_interrupt_after_the_publication_is_not_lost(cache, scale_kernel, monkeypatch):
    replace_file = os.replace

    def interrupted(source, target):
        replace_file(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.load(scale_kernel, "sm_80")
    assert cache.get(scale_kernel, "sm_80") is not None


def test_a_directory_that_cannot_be_written_costs_only_time(tmp_path, scale_kernel, compiled):
    (tmp_path / "file").write_text("")
    cache = ModuleCache(tmp_path / "file" / "cache")
    assert cache.refusal() == "Not a directory"
    assert ModuleCache(tmp_path / "new").refusal() is None
    assert list((tmp_path / "new").iterdir()) == []
    assert cache.load(scale_kernel, "sm_80") == cache.load(scale_kernel, "sm_80")
    assert len(compiled) == 2


def test_kernels_of_one_name_in_two_sources_are_two(cache, package, scale_kernel, compiled):
    (package / "other.cu").write_text((package / "scale.cu").read_text())
    cache.load(scale_kernel, "sm_80")
    cache.load(Kernel("other.cu", scale_kernel.instance), "sm_80")
    assert len(compiled) == 2
