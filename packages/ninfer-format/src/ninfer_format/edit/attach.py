"""Attaching a component of one artifact to another, byte for byte."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.file_set import CHUNK_BYTES
from ninfer_format.container.reader import open_artifact
from ninfer_format.container.schema import ObjectRecord
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.edit.attachment import OPERATION, Attachment, plan_attachment
from ninfer_format.edit.checked_rewrite import remove_artifact, rewrite_checked
from ninfer_format.errors import ArtifactError
from ninfer_format.publish import StagedFiles

REPORT_SUFFIX = ".attach.json"


def attach_component(
    base: Artifact,
    donor: Artifact,
    out: str | PathLike[str],
    component: str,
    *,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write an artifact that is `base` with a component of `donor`.

    The donor's objects go behind the base's payload under new ids; nothing is encoded anew. Then
    the SHA-256 of every object is compared with that of its source. Beside the artifact a report
    ``OUT.attach.json`` is written.

    Args:
        base: The artifact that gets the component.
        donor: The artifact that has it: the same model with the same tokenizer.
        out: The entry file to be; neither it nor the report is replaced.
        component: The component's id, for example ``dflash2``.
        max_file_bytes: Limit for the length of each file.
        advance: Is told how many bytes were worked on, `Attachment.work_bytes` in all.

    Returns:
        The entry file.

    Raises:
        FileExistsError: A file to be written exists.
        ArtifactError: As `plan_attachment`; `writer`: what was written differs from its source.
        OSError: A file cannot be read, or the disk is full.
    """
    attachment = plan_attachment(base, donor, component)
    advance = advance or (lambda num_bytes: None)
    report_path = Path(f"{os.fspath(out)}{REPORT_SUFFIX}")
    if os.path.lexists(report_path):
        raise FileExistsError(errno.EEXIST, "output exists already", str(report_path))
    entry = rewrite_checked(
        out,
        attachment.directory,
        payload=base.payload,
        kept_bytes=base.payload_bytes,
        additions=attachment.additions,
        max_file_bytes=max_file_bytes,
        advance=advance,
    )
    try:
        _write_report(report_path, _verified_report(attachment, entry, advance))
    except BaseException:
        remove_artifact(entry)
        raise
    return entry


def _verified_report(
    attachment: Attachment, entry: Path, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Compare every object with its source, and say what was done.

    Raises:
        ArtifactError: `writer`: an object differs.
    """
    base, donor = attachment.base, attachment.donor
    sources = [("base", base, record.id, record.id) for record in base.directory.objects]
    sources += [("donor", donor, old, new) for old, new in attachment.ids.items()]
    objects: list[dict[str, Any]] = []
    with open_artifact(entry) as written:
        for origin, source, old, new in sources:
            digest = _sha256(source, source.record(old), advance)
            found = _sha256(written, written.record(new), advance)
            if found != digest:
                raise ArtifactError(
                    "writer",
                    "differs from its source",
                    path=entry,
                    object_id=new,
                    expected=f"SHA-256 {digest}",
                    found=found,
                )
            num_bytes = written.record(new).num_bytes
            objects.append(
                {"id": new, "from": origin, "source_id": old, "bytes": num_bytes, "sha256": digest}
            )
        return {
            "component": attachment.component,
            "operation": OPERATION,
            "output": _identity(written),
            "base": _identity(base),
            "donor": _identity(donor),
            "objects": objects,
        }


def _identity(artifact: Artifact) -> dict[str, str]:
    return {"file": artifact.path.name, "artifact_id": artifact.artifact_id.hex()}


def _sha256(artifact: Artifact, record: ObjectRecord, advance: Callable[[int], None]) -> str:
    """Hash the bytes of an object, whatever its encoding."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK_BYTES, record.num_bytes)))
    for offset in range(record.offset, record.end, CHUNK_BYTES):
        chunk = buffer[: min(CHUNK_BYTES, record.end - offset)]
        artifact.read_into(offset, chunk)
        digest.update(chunk)
        advance(chunk.nbytes)
    return digest.hexdigest()


def _write_report(path: Path, report: dict[str, Any]) -> None:
    text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
    with StagedFiles() as staged:
        with os.fdopen(staged.create(path), "wb", closefd=False) as file:
            file.write(text.encode("utf-8"))
        staged.publish_new()
