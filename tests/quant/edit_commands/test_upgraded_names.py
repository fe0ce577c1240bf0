"""What an upgraded model is called, against what the runtime and the recipes call it."""

from __future__ import annotations

import gzip
import json
from math import prod
from pathlib import Path

import pytest

from ninfer_format import BindingTable, LegacyDirectory, TensorRecord, published_table
from ninfer_format.legacy.directory import parse_legacy_directory
from ninfer_runtime.models.architecture import LogicalParameter
from ninfer_runtime.models.registry import find_architecture

DIRECTORY = (
    Path(__file__).parents[2]
    / "data/conformance/artifacts/legacy"
    / "official_qwen3_6_27b_groupwise_int.v2_directory.json.gz"
)


@pytest.fixture(scope="module")
def directory() -> LegacyDirectory:
    return parse_legacy_directory(json.loads(gzip.decompress(DIRECTORY.read_bytes())), 2, 2**40)


@pytest.fixture(scope="module")
def table(directory: LegacyDirectory) -> BindingTable:
    return published_table(directory)


@pytest.fixture(scope="module")
def logical(table: BindingTable) -> dict[str, LogicalParameter]:
    """The parameters that the runtime wants for the components of the upgraded model."""
    architecture = find_architecture("Qwen3_5ForCausalLM")
    configs = {name: dict(component.config) for name, component in table.components.items()}
    return {item.name: item for item in architecture.parameters(configs)}


def test_every_parameter_of_the_runtime_is_bound(
    table: BindingTable, logical: dict[str, LogicalParameter], directory: LegacyDirectory
):
    proposal = {"proposal/head", "proposal/token_ids"}
    assert table.bindings.keys() - proposal == logical.keys()
    shapes = {item.id: item.shape for item in directory.objects if isinstance(item, TensorRecord)}
    for name, parameter in logical.items():
        binding = table.bindings[name]
        if binding.object is not None:
            assert shapes[binding.object] == parameter.shape, name
        else:
            elements = sum(part.end - part.begin for part in binding.parts)
            assert elements == prod(parameter.shape), name


def test_every_use_of_the_runtime_is_there(
    table: BindingTable, logical: dict[str, LogicalParameter]
):
    wanted = {(item.name, place) for item in logical.values() for place in item.inputs}
    found = {(use.parameter, use.input) for use in table.uses}
    assert found - {("proposal/head", "mtp/final_hidden")} == wanted


def test_direct_values_have_the_formats_that_the_runtime_reads(
    table: BindingTable, logical: dict[str, LogicalParameter], directory: LegacyDirectory
):
    formats = {item.id: item.format for item in directory.objects if isinstance(item, TensorRecord)}
    for name, parameter in logical.items():
        binding = table.bindings[name]
        if not parameter.inputs and len(parameter.shape) == 1 and binding.object is not None:
            assert formats[binding.object] == parameter.storage_format, name
