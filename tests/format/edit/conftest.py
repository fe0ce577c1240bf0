"""Small artifacts to edit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    Artifact,
    ArtifactWriter,
    Binding,
    Component,
    Part,
    ResourceSpec,
    TensorSpec,
    Use,
    open_artifact,
    plan_artifact,
)

Spec = TensorSpec | ResourceSpec

TOKENIZER = b'{"tokens": []}'
CONFIG = {"hidden_size": 64, "rms_norm_eps": 9.999999974752427e-07, "layer_types": ["full"]}


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """Write an artifact with arbitrary bytes in its tensors."""

    def write(
        name: str,
        specs: Sequence[Spec],
        *,
        components: Mapping[str, Component],
        bindings: Mapping[str, Binding],
        uses: Sequence[Use] = (),
        **arguments: Any,
    ) -> Path:
        plan = plan_artifact(
            specs, components=components, bindings=bindings, uses=uses, **arguments
        )
        with ArtifactWriter(tmp_path / name, plan) as writer:
            for record in plan.directory.tensors:
                seed = int.from_bytes(record.id.encode(), "little")
                generator = np.random.default_rng(seed)
                writer.write(record.id, 0, generator.bytes(record.num_bytes))
        return tmp_path / name

    return write


@pytest.fixture
def base_parts() -> dict[str, Any]:
    """Arguments of `write_model` for a model without a drafter; a test may change them."""
    scalar = {"activation_input_divisor": Binding(object="scalar")}
    return {
        "specs": [
            ResourceSpec("tokenizer", TOKENIZER),
            TensorSpec("head", (128, 64), "nvfp4", "block_scale_k16_m128x4_v1"),
            TensorSpec("scalar", (), "fp32", "contiguous_le_v1"),
            TensorSpec("proposal", (16, 64), "q4_g64_fp16", "row_split_k128_v1"),
            TensorSpec("ids", (16,), "int32", "contiguous_le_v1"),
            ResourceSpec("template", b"{{ messages }}"),
        ],
        "components": {
            "text": Component(
                CONFIG, resources={"tokenizer.json": "tokenizer", "chat_template.jinja": "template"}
            ),
            "mtp": Component({}, "text"),
        },
        "bindings": {
            "text/output_head": Binding(object="head"),
            "proposal/head": Binding(object="proposal"),
            "proposal/token_ids": Binding(object="ids"),
        },
        "uses": [
            Use("text/output_head", "text/final_hidden", "AllowA4", scalar),
            Use("text/output_head", "mtp/final_hidden", "AllowA4", scalar),
            Use("proposal/head", "mtp/final_hidden", "A16Only"),
        ],
        "metadata": {"name": "base"},
        "provenance": {"made_from": "base checkpoint"},
    }


@pytest.fixture
def donor_parts() -> dict[str, Any]:
    """Arguments of `write_model` for the same model in other formats, with a DFlash2 drafter."""
    block = "dflash2/layers/0/attention/"
    scalar = {"activation_input_divisor": Binding(object="draft.scalar")}
    return {
        "specs": [
            ResourceSpec("tok", TOKENIZER),
            TensorSpec("scalar", (128, 64), "bf16", "contiguous_le_v1"),
            TensorSpec("draft.qkv", (384, 64), "nvfp4", "block_scale_k16_m128x4_v1", divisors=3),
            TensorSpec("draft.scalar", (), "fp32", "contiguous_le_v1"),
            TensorSpec(
                "draft.output", (128, 128), "exl3_mul1", "trellis_t16_v1", bitrate_half_bits=5
            ),
            TensorSpec("head", (64,), "bf16", "contiguous_le_v1"),
            ResourceSpec("draft.notes", b"notes of the drafter"),
        ],
        "components": {
            "text": Component(CONFIG, resources={"tokenizer.json": "tok"}),
            "dflash2": Component({"layers": 1}, "text", {"notes.txt": "draft.notes"}),
        },
        "bindings": {
            "text/output_head": Binding(object="scalar"),
            f"{block}query": Binding(parts=(Part("draft.qkv", 0, 128 * 64),)),
            f"{block}key": Binding(parts=(Part("draft.qkv", 128 * 64, 256 * 64),)),
            f"{block}context_key": Binding(parts=(Part("draft.qkv", 128 * 64, 256 * 64),)),
            f"{block}value": Binding(parts=(Part("draft.qkv", 256 * 64, 384 * 64),)),
            f"{block}output": Binding(object="draft.output"),
            "dflash2/final_norm": Binding(object="head"),
        },
        "uses": [
            Use("text/output_head", "text/final_hidden", "A16Only"),
            Use("text/output_head", "dflash2/final_hidden", "A16Only"),
            Use(f"{block}query", "dflash2/layers/0/query_projection_input", "AllowA4", scalar),
            Use(f"{block}context_key", "dflash2/context_input", "AllowA4", scalar),
            Use(f"{block}output", "dflash2/layers/0/attention_output", "A16Only"),
        ],
        "metadata": {"name": "donor"},
        "provenance": {"recipe": "draft recipe"},
    }


@pytest.fixture
def base(write_model: Callable[..., Path], base_parts: dict[str, Any]) -> Iterator[Artifact]:
    with open_artifact(write_model("base.ninfer", **base_parts)) as artifact:
        yield artifact


@pytest.fixture
def donor(write_model: Callable[..., Path], donor_parts: dict[str, Any]) -> Iterator[Artifact]:
    with open_artifact(write_model("donor.ninfer", **donor_parts)) as artifact:
        yield artifact


@pytest.fixture
def multipart(conformance: Path) -> Iterator[Artifact]:
    """The reference's artifact of four files."""
    path = conformance / "artifacts" / "multipart" / "multipart.ninfer"
    with open_artifact(path) as artifact:
        yield artifact


@pytest.fixture
def all_formats(conformance: Path) -> Iterator[Artifact]:
    """The reference's artifact with every format, stacked divisors and bit rates."""
    path = conformance / "artifacts" / "all_formats" / "all_formats.ninfer"
    with open_artifact(path) as artifact:
        yield artifact


@pytest.fixture(scope="session")
def hashes() -> Callable[[Artifact], dict[str, str]]:
    """SHA-256 of the bytes of every object."""

    def run(artifact: Artifact) -> dict[str, str]:
        return {
            record.id: hashlib.sha256(
                artifact.read_range(record.offset, record.num_bytes)
            ).hexdigest()
            for record in artifact.directory.objects
        }

    return run
