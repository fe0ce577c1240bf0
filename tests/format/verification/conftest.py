from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import open_artifact
from ninfer_format.verification.artifact_check import ArtifactCheck, Verification
from ninfer_format.verification.conversion_report import report_path
from ninfer_format.verification.hashes import hash_directory, hash_objects
from ninfer_runtime import builtin_model

Verify = Callable[..., Verification]


def ignore(num_bytes: int, item: str) -> None:
    pass


@pytest.fixture(scope="session")
def verify() -> Verify:
    """Run all checks of an artifact, and check that they count what they announced."""

    def run(path: Path, *, jobs: int = 2) -> Verification:
        counted: list[int] = []
        with open_artifact(path) as artifact:
            check = ArtifactCheck(artifact)
            result = check.run(jobs=jobs, advance=lambda amount, item: counted.append(amount))
        assert sum(counted) == check.total_bytes
        return result

    return run


@pytest.fixture
def builtin_copy(tmp_path: Path) -> Path:
    """A copy of the built-in model with the report beside it."""
    source = builtin_model.path()
    copy = tmp_path / source.name
    shutil.copy(source, copy)
    shutil.copy(report_path(source), report_path(copy))
    return copy


@pytest.fixture(scope="session")
def write_report() -> Callable[..., Path]:
    """Write the report of an artifact as it is now; members may be replaced."""

    def write(path: Path, **members: Any) -> Path:
        with open_artifact(path) as artifact:
            report = {
                "artifact_id": artifact.artifact_id.hex(),
                "directory_sha256": hash_directory(artifact),
                "object_sha256": hash_objects(artifact, jobs=1, advance=ignore),
            }
        report_path(path).write_text(json.dumps(report | members))
        return report_path(path)

    return write
