"""What an engine says about the model that it has loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ninfer_format import Artifact


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model.

    Attributes:
        name: Name that the artifact gives itself, else its architecture.
        architecture: Architecture of the text component.
        vocab_size: Rows of the output head, V.
        public_tokens: Token ids below this may appear in prompts and outputs.
        max_context: Longest sequence (prompt and output) of this engine, in tokens.
        max_position_embeddings: Longest sequence that the model was made for, in tokens.
        hidden_size: Width of the hidden rows, D.
        num_parameters: Elements of all tensors of the artifact.
        payload_bytes: Bytes of all tensors of the artifact.
        formats: Numeric formats of the tensors, sorted.
        load_s: Seconds that loading took.
    """

    name: str
    architecture: str
    vocab_size: int
    public_tokens: int
    max_context: int
    max_position_embeddings: int
    hidden_size: int
    num_parameters: int
    payload_bytes: int
    formats: tuple[str, ...]
    load_s: float = 0.0


def describe(artifact: Artifact, *, public_tokens: int, load_s: float) -> ModelInfo:
    """Read the facts about a model from its artifact.

    Args:
        artifact: An artifact whose text component has been accepted by its architecture.
        public_tokens: Size of the tokenizer's domain.
        load_s: Seconds that loading took.
    """
    from ninfer_format import TensorRecord

    config = artifact.directory.components["text"].config
    architecture = str(config["architectures"][0])
    tensors = [record for record in artifact.directory.objects if isinstance(record, TensorRecord)]
    return ModelInfo(
        name=artifact.name or architecture,
        architecture=architecture,
        vocab_size=config["vocab_size"],
        public_tokens=public_tokens,
        max_context=config["max_position_embeddings"],
        max_position_embeddings=config["max_position_embeddings"],
        hidden_size=config["hidden_size"],
        num_parameters=sum(math.prod(record.shape) for record in tensors),
        payload_bytes=sum(record.num_bytes for record in tensors),
        formats=tuple(sorted({record.format for record in tensors})),
        load_s=load_s,
    )
