"""Small artifacts and the commands that edit them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer_format import (
    ArtifactWriter,
    Binding,
    Component,
    ResourceSpec,
    TensorSpec,
    Use,
    open_artifact,
    plan_artifact,
)
from ninfer_format.commandline import run
from ninfer_quant.cli.convert import command
from ninfer_quant.cli.schema import SCHEMA

Convert = Callable[..., tuple[int, str, str]]
WriteModel = Callable[..., Path]

TOKENIZER = b'{"tokens": []}'


@pytest.fixture
def convert_command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Convert:
    """Run ``ninfer-convert`` and return its exit code, stdout and stderr."""

    monkeypatch.setattr(sys, "argv", ["ninfer-convert"])

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run(command, SCHEMA, [str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert isinstance(caught.value.code, int)
        assert "Traceback" not in err
        return caught.value.code, out, err

    return call


@pytest.fixture(scope="session")
def write_model() -> WriteModel:
    """Write a small model; see the arguments of `write`."""
    return write


def write(path: Path, *, drafter: bool = False, max_file_bytes: int = 32_000_000_000) -> Path:
    """A small model in files of at most `max_file_bytes`, with or without a drafter."""
    specs: list[TensorSpec | ResourceSpec] = [
        ResourceSpec("tokenizer", TOKENIZER),
        TensorSpec("head", (64, 64), "bf16", "contiguous_le_v1"),
        ResourceSpec("generation", b"{}"),
        ResourceSpec("template", b"{{ messages }}"),
    ]
    roles = {
        "tokenizer.json": "tokenizer",
        "generation_config.json": "generation",
        "chat_template.jinja": "template",
    }
    components = {"text": Component({"hidden_size": 64}, resources=roles)}
    bindings = {"text/output_head": Binding(object="head")}
    uses = [Use("text/output_head", "text/final_hidden", "A16Only")]
    if drafter:
        specs.append(TensorSpec("draft", (64, 64), "bf16", "contiguous_le_v1"))
        components["dflash2"] = Component({}, "text")
        bindings["dflash2/feature_projection"] = Binding(object="draft")
        uses += [
            Use("dflash2/feature_projection", "dflash2/target_features", "A16Only"),
            Use("text/output_head", "dflash2/final_hidden", "A16Only"),
        ]
    plan = plan_artifact(
        specs,
        components=components,
        bindings=bindings,
        uses=uses,
        metadata={"name": path.stem},
        max_file_bytes=max_file_bytes,
    )
    with ArtifactWriter(path, plan) as writer:
        for record in plan.directory.tensors:
            writer.write(record.id, 0, bytes(range(256)) * (record.num_bytes // 256))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model in three files."""
    path = write(tmp_path / "in.ninfer", max_file_bytes=8192)
    with open_artifact(path) as artifact:
        assert len(artifact.directory.files) == 3
    return path


@pytest.fixture
def donor(tmp_path: Path) -> Path:
    return write(tmp_path / "donor.ninfer", drafter=True)


@pytest.fixture
def edits(tmp_path: Path, source: Path, donor: Path) -> dict[str, list[object]]:
    """Arguments of every command, IN first and OUT last, by name."""
    out = tmp_path / "out.ninfer"
    (tmp_path / "new.jinja").write_text("{{ messages[0] }}", encoding="utf-8")
    (tmp_path / "new.json").write_text('{"a": 1}', encoding="utf-8")
    options: dict[str, list[object]] = {
        "policy": ["--parameter", "text/*", "--policy", "AllowA8"],
        "template": ["--file", tmp_path / "new.jinja"],
        "resource": ["--role", "generation_config.json", "--file", tmp_path / "new.json"],
        "rename": ["--name", "neuer Name ü"],
        "split": ["--max-file-bytes", "12KiB"],
    }
    commands: dict[str, list[object]] = {
        name: [name, *given, source, out] for name, given in options.items()
    }
    return {**commands, "attach": ["attach", "--component", "dflash2", source, donor, out]}
