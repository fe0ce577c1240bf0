"""The published files that can be upgraded without a table (container specification, section 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ninfer_format.errors import ArtifactError
from ninfer_format.legacy.directory import LegacyDirectory
from ninfer_format.legacy.geometry import (
    DENSE_27B,
    DFLASH,
    DFLASH2,
    MOE_35B,
    VISION,
    DraftGeometry,
    TextGeometry,
    VisionGeometry,
)


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """One published model in one quantization.

    Attributes:
        model_id: Name of the model.
        weights_id: Name of the quantization.
        text: Sizes of the language model.
        bindings: Number of bindings by number of objects, for each known variant.
        drafts: Draft components that it may have.
        vision: Sizes of the vision tower.
    """

    model_id: str
    weights_id: str
    text: TextGeometry
    bindings: Mapping[int, int]
    drafts: Mapping[str, DraftGeometry]
    vision: VisionGeometry = VISION


_DFLASH = {"dflash": DFLASH}
_DFLASH2 = {"dflash2": DFLASH2}

PUBLISHED_MODELS = (
    PublishedModel("qwen3.6-27b", "groupwise-int", DENSE_27B, {1124: 1422}, {}),
    PublishedModel("qwen3.6-27b", "nvfp4", DENSE_27B, {1307: 1422}, {}),
    PublishedModel("qwen3.8-27b", "groupwise-int", DENSE_27B, {1124: 1422, 1190: 1513}, _DFLASH2),
    PublishedModel("qwen3.8-27b", "nvfp4", DENSE_27B, {1124: 1422, 1190: 1513}, _DFLASH2),
    PublishedModel("qwen3.6-35b-a3b", "groupwise-int", MOE_35B, {940: 32713}, _DFLASH),
)

V1_WEIGHTS = {"qwen3.6-27b": "groupwise-int", "qwen3.6-35b-a3b": "groupwise-int"}
"""The quantization of the models that were published as version 1, which does not say it."""


def find_published(directory: LegacyDirectory) -> PublishedModel:
    """Find the published model that a file says it is, with the right number of objects.

    Raises:
        ArtifactError: `schema`: no such model; `objects`: another number of objects.
    """
    weights_id = directory.weights_id or V1_WEIGHTS.get(directory.model_id)
    for model in PUBLISHED_MODELS:
        if (model.model_id, model.weights_id) == (directory.model_id, weights_id):
            break
    else:
        known = ", ".join(f"{model.model_id}/{model.weights_id}" for model in PUBLISHED_MODELS)
        raise ArtifactError(
            "schema",
            "no published model",
            expected=f"one of {known}",
            found=directory.model_id + (f"/{weights_id}" if weights_id else ""),
            hint="describe its components, bindings and uses in a file and give it with --table",
        )
    if len(directory.objects) not in model.bindings:
        raise ArtifactError(
            "objects",
            f"wrong number of objects for {model.model_id}/{model.weights_id}",
            expected=" or ".join(map(str, model.bindings)),
            found=len(directory.objects),
        )
    return model
