"""Changing which activation precisions the uses of parameters permit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os import PathLike

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import ActivationPolicy
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES
from ninfer_format.edit.checked_rewrite import rewrite_checked
from ninfer_format.errors import UsageError


def set_activation_policy(
    source: Artifact,
    out: str | PathLike[str],
    patterns: Sequence[str],
    policy: ActivationPolicy,
    *,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    advance: Callable[[int], None] | None = None,
) -> int:
    """Write the same artifact with another policy for all uses of some parameters.

    Args:
        source: The artifact; any number of files.
        out: The entry file to be; it is not replaced.
        patterns: Shell patterns over full parameter names; upper and lower case differ.
        policy: What those uses shall permit.
        max_file_bytes: Limit for the length of each file.
        advance: Is told how many bytes have been copied, chunk by chunk.

    Returns:
        Number of uses that changed.

    Raises:
        UsageError: A pattern matches no parameter that has a use, or nothing would change.
        FileExistsError: The entry or a part exists.
        ArtifactError: `schema`: no such policy; otherwise as reading `source` reports it.
        OSError: A file cannot be read, or the disk is full.
    """
    uses = source.directory.uses
    parameters = {use.parameter for use in uses}
    chosen: set[str] = set()
    for pattern in patterns:
        matching = {name for name in parameters if fnmatchcase(name, pattern)}
        if not matching:
            raise UsageError(
                f"pattern {pattern!r} matches no parameter with a use", path=source.path
            )
        chosen |= matching
    changed = tuple(
        replace(use, activation_policy=policy) if use.parameter in chosen else use for use in uses
    )
    count = sum(old != new for old, new in zip(uses, changed, strict=True))
    if count == 0:
        raise UsageError(f"all of these uses are {policy} already", path=source.path)
    rewrite_checked(
        out,
        replace(source.directory, uses=changed),
        payload=source.payload,
        kept_bytes=source.payload_bytes,
        max_file_bytes=max_file_bytes,
        advance=advance,
    )
    return count
