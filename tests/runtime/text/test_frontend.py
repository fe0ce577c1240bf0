"""What a frontend takes from the resources of an artifact."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ninfer_format.errors import ArtifactError
from ninfer_runtime.engine.request import Message, PromptInput
from ninfer_runtime.errors import StartupError
from ninfer_runtime.sampling.params import preset
from ninfer_runtime.text.frontend import Frontend

HELLO = PromptInput(messages=(Message("user", "hello"),))


def artifact(resources, **config) -> Any:
    """Stands in for an opened artifact."""
    return SimpleNamespace(
        path=Path("m.ninfer"),
        directory=SimpleNamespace(components={"text": SimpleNamespace(config=config)}),
        has_resource=lambda component, role: component == "text" and role in resources,
        resource=lambda component, role: resources[role],
    )


def test_an_artifact_has_everything(resources):
    frontend = Frontend.from_artifact(artifact(resources))
    assert frontend.stop_token_ids == (4085, 4083)
    assert frontend.tokenizer.public_tokens == 4096
    assert frontend.prepare(HELLO).text.startswith("<|im_start|>user\nhello<|im_end|>\n")


@pytest.mark.parametrize(("config", "is_moe"), [({}, False), ({"num_experts": 8}, True)])
def test_the_preset_is_that_of_the_architecture(resources, config, is_moe):
    frontend = Frontend.from_artifact(artifact(resources, **config))
    for thinking in (False, True):
        assert frontend.sampling_preset(thinking) == preset(is_moe, thinking)


def test_a_missing_tokenizer_is_named(resources):
    with pytest.raises(ArtifactError, match=r"m\.ninfer: component 'text' has no tokenizer\.json"):
        Frontend.from_artifact(artifact({}))


@pytest.mark.parametrize(
    ("generation", "ids"),
    [({"eos_token_id": 4083}, (4083,)), ({"eos_token_id": [4085]}, (4085,)), ({}, (4085,))],
)
def test_stop_tokens(resources, generation, ids):
    changed = {**resources, "generation_config.json": json.dumps(generation).encode()}
    assert Frontend(changed).stop_token_ids == ids


@pytest.mark.parametrize("declared", [[], 4096, -1, "4085", [4085, True], [1.0]])
def test_impossible_stop_tokens_are_refused(resources, declared):
    changed = {
        **resources,
        "generation_config.json": json.dumps({"eos_token_id": declared}).encode(),
    }
    with pytest.raises(ArtifactError, match=r"eos_token_id.*0\.\.4095"):
        Frontend(changed)


def test_a_model_that_never_ends_is_refused(resources):
    with pytest.raises(ArtifactError, match="nothing would end the output"):
        Frontend({"tokenizer.json": resources["tokenizer.json"]})


@pytest.mark.parametrize(
    "embedded",
    ["embedded", [{"name": "tool", "template": "x"}, {"name": "default", "template": "embedded"}]],
)
def test_the_template_may_be_in_the_tokenizers_file(resources, embedded):
    config = json.loads(resources["tokenizer_config.json"]) | {"chat_template": embedded}
    changed = {**resources, "tokenizer_config.json": json.dumps(config).encode()}
    assert Frontend(changed).prepare(HELLO).text.startswith("<|im_start|>")
    del changed["chat_template.jinja"]
    assert Frontend(changed).prepare(HELLO).text == "embedded"


def test_a_template_file_replaces_the_models_own(resources, tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text("mine: {{ messages[0].content }}")
    assert Frontend.from_artifact(artifact(resources), path).prepare(HELLO).text == "mine: hello"


@pytest.mark.parametrize("content", [None, b"\xff", b"{% if %}"])
def test_a_faulty_template_file_is_named(resources, tmp_path, content):
    path = tmp_path / "mine.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match=r"mine\.jinja"):
        Frontend(resources, chat_template=path)


@pytest.mark.parametrize("content", [b"\xff", b"{% if %}"])
def test_a_faulty_template_of_the_model_is_a_fault_of_the_artifact(resources, content):
    with pytest.raises(ArtifactError, match=r"chat_template\.jinja"):
        Frontend({**resources, "chat_template.jinja": content})
