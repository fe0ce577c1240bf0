"""Replacing a resource, such as the chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.plan import ResourceSpec
from ninfer_format.container.rewrite import Addition
from ninfer_format.container.schema import Directory, ObjectRecord
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.edit.checked_rewrite import rewrite_checked
from ninfer_format.edit.object_ids import free_id
from ninfer_format.errors import UsageError


def replace_resource(
    source: Artifact,
    out: str | PathLike[str],
    component: str,
    role: str,
    data: bytes,
    *,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write the same artifact with other bytes for one resource.

    The last object of the payload is replaced where it is. Any other stays as a gap, and the new
    bytes go behind the payload. An object that fills other roles too is kept for those.

    Args:
        source: The artifact; any number of files.
        out: The entry file to be; it is not replaced.
        component: The component that has the resource.
        role: Its role there, for example ``chat_template.jinja``.
        data: The new bytes, at least one.
        max_file_bytes: Limit for the length of each file.
        advance: Is told how many bytes have been copied, chunk by chunk.

    Returns:
        The entry file.

    Raises:
        UsageError: The resource has these bytes already.
        FileExistsError: The entry or a part exists.
        ArtifactError: `reference`: no such component or role; `schema`: `data` is empty;
            otherwise as reading `source` reports it.
        OSError: A file cannot be read, or the disk is full.
    """
    if source.resource(component, role) == data:
        raise UsageError(f"resource {role} has these bytes already", path=source.path)
    replacement = _plan(source, component, role)
    directory = source.directory
    old = directory.components[component]
    changed = replace(old, resources={**old.resources, role: replacement.object_id})
    components = {**directory.components, component: changed}
    return rewrite_checked(
        out,
        replace(directory, objects=replacement.kept_objects, components=components),
        payload=source.payload,
        kept_bytes=replacement.kept_bytes,
        additions=[Addition(ResourceSpec(replacement.object_id, data))],
        max_file_bytes=max_file_bytes,
        advance=advance,
    )


def replaced_payload_bytes(source: Artifact, component: str, role: str, data: bytes) -> int:
    """How much `replace_resource` will count: payload bytes that are kept, and the new ones.

    Raises the same errors as `replace_resource`.
    """
    return _plan(source, component, role).kept_bytes + len(data)


@dataclass(frozen=True, slots=True)
class _Replacement:
    """What becomes of the old object, and the id of the new one."""

    kept_objects: tuple[ObjectRecord, ...]
    kept_bytes: int
    object_id: str


def _plan(source: Artifact, component: str, role: str) -> _Replacement:
    directory = source.directory
    old = source.record(directory.components[component].resources[role])
    if _roles_of(directory, old) > 1:
        object_id = free_id(old.id, [record.id for record in directory.objects])
        return _Replacement(directory.objects, source.payload_bytes, object_id)
    others = tuple(record for record in directory.objects if record is not old)
    is_end = old.end == source.payload_bytes
    return _Replacement(others, old.offset if is_end else source.payload_bytes, old.id)


def _roles_of(directory: Directory, record: ObjectRecord) -> int:
    """How many roles an object fills."""
    components = directory.components.values()
    return sum(list(component.resources.values()).count(record.id) for component in components)
