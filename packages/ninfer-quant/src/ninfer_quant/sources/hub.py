"""Checkpoints of the Hugging Face Hub, by id."""

from __future__ import annotations

import re
from pathlib import Path

from ninfer_quant.errors import DownloadError

_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII
)
_FILE_SUFFIXES = (".gguf", ".json", ".ninfer", ".safetensors")

DESCRIPTIONS = ("*.json", "*.jinja", "*.txt")
"""Everything but weights."""
WEIGHTS = ("*.safetensors",)


def is_hub_id(reference: str) -> bool:
    """Whether a reference is a Hub id, ``org/name`` with an optional ``@revision``.

    What exists as a path is a path.
    """
    if Path(reference).expanduser().exists() or reference.endswith(_FILE_SUFFIXES):
        return False
    return _ID.fullmatch(reference) is not None


def snapshot_id(path: Path) -> tuple[str, str] | None:
    """Repository and commit of a folder of the Hub's cache; None for any other path."""
    folder = path.absolute()
    repository = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not repository.startswith("models--"):
        return None
    return repository.removeprefix("models--").replace("--", "/", 1), folder.name


def download(reference: str, *, with_weights: bool = True) -> Path:
    """Make sure that a checkpoint is in the cache of ``huggingface-hub``.

    What is there already is not loaded again, and a download that was interrupted goes on.

    Args:
        reference: ``org/name`` with an optional ``@revision``.
        with_weights: Without it only configuration, index and tokenizer are loaded.

    Returns:
        The folder of the snapshot.

    Raises:
        DownloadError: The Hub cannot be reached, or has no such checkpoint.
    """
    from huggingface_hub import snapshot_download

    found = _ID.fullmatch(reference)
    if found is None:
        raise DownloadError(f"{reference!r} is no Hub id (expected org/name or org/name@revision)")
    patterns = [*DESCRIPTIONS, *(WEIGHTS if with_weights else ())]
    try:
        folder = snapshot_download(
            found["repository"], revision=found["revision"], allow_patterns=patterns
        )
    # The package raises errors of several HTTP libraries, which have no base class in common.
    except Exception as error:
        raise DownloadError(
            f"{reference} is no path, and cannot be loaded from the Hub: {_one_line(error)}",
            hint=_hint(error),
        ) from error
    return Path(str(folder))


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _hint(error: Exception) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return "there is no connection to the Hub, and the checkpoint is not in its cache"
    if isinstance(error, GatedRepoError):
        return "accept the terms of the checkpoint and log in with: hf auth login"
    if isinstance(error, RevisionNotFoundError):
        return "the checkpoint has no such revision"
    if isinstance(error, RepositoryNotFoundError):
        return "is the name right? a private checkpoint needs: hf auth login"
    return "check the connection; the download goes on where it stopped"
