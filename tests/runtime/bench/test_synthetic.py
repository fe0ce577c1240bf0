from __future__ import annotations

import json

import pytest

from ninfer_format.errors import UsageError
from ninfer_runtime.bench.synthetic import known_geometries, read_geometry


@pytest.mark.parametrize("name", known_geometries())
def test_a_geometry_that_comes_along_is_found_by_its_name(name):
    assert read_geometry(name)["text_config"]["vocab_size"] == 248320


def test_a_file_and_its_folder_are_read(tmp_path):
    config = {"architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 64}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert read_geometry(str(path)) == read_geometry(str(tmp_path)) == config


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"architectures": []}'])
def test_what_is_no_configuration_is_refused(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"config\.json: (not JSON|expected a JSON object)"):
        read_geometry(str(path))


def test_what_is_not_there_is_refused_with_what_is(tmp_path):
    with pytest.raises(UsageError, match="no such geometry") as caught:
        read_geometry(str(tmp_path / "qwen"))
    assert "qwen3.6-27b" in str(caught.value.hint)
