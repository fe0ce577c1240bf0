"""Writing a version 1 or 2 file as a version 3 artifact, without touching a stored value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format.container.location import located
from ninfer_format.container.plan import ResourceSpec
from ninfer_format.container.rewrite import Addition
from ninfer_format.container.schema import Directory, TensorRecord
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.edit.checked_rewrite import rewrite_checked
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import PLANE_ALIGNMENT, align_up
from ninfer_format.legacy.directory import LegacyDirectory
from ninfer_format.legacy.policies import SCALAR_SUFFIX
from ninfer_format.legacy.reader import LegacyArtifact
from ninfer_format.legacy.table import BindingTable

CHAT_TEMPLATE_ROLE = "chat_template.jinja"


def upgrade_artifact(
    source: LegacyArtifact,
    out: str | PathLike[str],
    table: BindingTable,
    *,
    chat_template: bytes | None = None,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write a version 3 artifact with the payload of an older file.

    All objects keep their offsets and bytes. A new chat template goes behind the payload, at a
    multiple of 256; the bytes of the old one stay as a gap.

    Args:
        source: The older file.
        out: The entry file to be; it is not replaced.
        table: Components, bindings and uses for the objects of `source`.
        chat_template: Replaces the stored chat template.
        max_file_bytes: Limit for the length of each file.
        advance: Is told how many bytes have been copied, chunk by chunk.

    Returns:
        The entry file.

    Raises:
        FileExistsError: The entry or a part exists.
        ArtifactError: `codec`: an activation scalar is not finite and positive; `reference`: the
            text component has no chat template to replace; otherwise as `rewrite_artifact`.
        OSError: A file cannot be read, or the disk is full.
    """
    with located(source.path):
        _check_activation_scalars(source)
        plan = plan_upgrade(source.directory, source.payload.num_bytes, table, chat_template)
    return rewrite_checked(
        out,
        plan.directory,
        payload=source.payload,
        kept_bytes=plan.kept_bytes,
        additions=plan.additions,
        max_file_bytes=max_file_bytes,
        advance=advance,
    )


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """What a file becomes.

    Attributes:
        directory: The new directory, without a new chat template.
        kept_bytes: Payload bytes that stay where they are.
        additions: The new chat template, if there is one.
    """

    directory: Directory
    kept_bytes: int
    additions: tuple[Addition, ...]


def plan_upgrade(
    source: LegacyDirectory, payload_bytes: int, table: BindingTable, chat_template: bytes | None
) -> UpgradePlan:
    """Say what a file becomes, without reading or writing anything.

    Args:
        source: The older directory.
        payload_bytes: Length of the older payload.
        table: Components, bindings and uses.
        chat_template: Replaces the stored chat template.

    Raises:
        ArtifactError: `reference`: the text component has no chat template to replace.
    """
    objects, kept_bytes = source.objects, payload_bytes
    additions: tuple[Addition, ...] = ()
    if chat_template is not None:
        template_id = _template_id(table)
        objects = tuple(record for record in objects if record.id != template_id)
        kept_bytes = align_up(payload_bytes, PLANE_ALIGNMENT)
        additions = (Addition(ResourceSpec(template_id, chat_template)),)
    directory = Directory(
        components=table.components,
        objects=objects,
        bindings=table.bindings,
        uses=table.uses,
        files=(),
        metadata={"name": source.model_id},
        provenance={"upgraded_from": _identity(source)},
    )
    return UpgradePlan(directory, kept_bytes, additions)


def _check_activation_scalars(source: LegacyArtifact) -> None:
    for record in source.directory.objects:
        if not record.id.endswith(SCALAR_SUFFIX):
            continue
        if not isinstance(record, TensorRecord) or (record.format, record.shape) != ("fp32", ()):
            raise ArtifactError("schema", "is no fp32 scalar", object_id=record.id)
        value = float(source.read_object(record.id).view("<f4")[0])
        if not (np.isfinite(value) and value > 0):
            raise ArtifactError(
                "codec",
                "activation scalar has an illegal value",
                object_id=record.id,
                expected="a finite number above 0",
                found=value,
            )


def _template_id(table: BindingTable) -> str:
    resources = table.components["text"].resources
    if CHAT_TEMPLATE_ROLE not in resources:
        raise ArtifactError(
            "reference", f"component 'text' has no resource {CHAT_TEMPLATE_ROLE!r} to replace"
        )
    return resources[CHAT_TEMPLATE_ROLE]


def _identity(source: LegacyDirectory) -> dict[str, Any]:
    """What the file says that it is."""
    identity: dict[str, Any] = {"version": source.version, "model_id": source.model_id}
    if source.weights_id is not None:
        identity["weights_id"] = source.weights_id
    return identity
