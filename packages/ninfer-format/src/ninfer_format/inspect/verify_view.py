"""What ``--verify`` prints."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ninfer_format.commandline import Progress, Terminal, format_bytes
from ninfer_format.commandline.printable import printable
from ninfer_format.container.artifact import Artifact
from ninfer_format.errors import ExitCode, NInferError
from ninfer_format.inspect.aligned import aligned
from ninfer_format.verification.artifact_check import ArtifactCheck, Checked, Verification
from ninfer_format.verification.problems import Problem
from ninfer_format.workers import worker_count


class VerificationFailedError(NInferError):
    """An artifact has problems; they have been listed."""

    code = "verification"


def print_verification(terminal: Terminal, path: str, artifact: Artifact) -> ExitCode:
    """Check an artifact completely and list all problems.

    Returns:
        The exit code: `FAILED` if there are problems.
    """
    check = ArtifactCheck(artifact)
    with Progress(terminal, "verifying", total=check.total_bytes, unit="bytes") as progress:
        result = check.run(jobs=worker_count(), advance=progress.advance)
    failure = _failure(path, result.problems)
    if terminal.json:
        terminal.print_json(
            {
                "path": path,
                "artifact_id": artifact.artifact_id.hex(),
                "checked": result.checked.to_json(),
                "notes": list(result.notes),
                "problems": [problem.to_json() for problem in result.problems],
            },
            failure=failure,
        )
    else:
        _print_lines(result)
        if failure is not None:
            terminal.fail(failure)
    return ExitCode.OK if failure is None else ExitCode.FAILED


def _failure(path: str, problems: Sequence[Problem]) -> VerificationFailedError | None:
    if not problems:
        return None
    count = len(problems)
    noun = "problem" if count == 1 else "problems"
    return VerificationFailedError(f"{count} {noun} found", path=path)


def _print_lines(result: Verification) -> None:
    for line in _checked_lines(result.checked):
        click.echo(line)
    for note in result.notes:
        click.echo(printable(f"note: {note}"))
    if not result.problems:
        click.echo("no problems found")
        return
    click.echo()
    header = ("category", "offset", "object or file", "problem")
    rows = [
        (
            problem.category,
            "-" if problem.offset is None else str(problem.offset),
            problem.object or problem.file or "-",
            problem.message,
        )
        for problem in result.problems
    ]
    for line in aligned(header, rows, numbers={"offset"}):
        click.echo(line)


def _checked_lines(checked: Checked) -> list[str]:
    words = f"every word of {checked.objects} objects ({format_bytes(checked.payload_bytes)})"
    if checked.skipped_objects:
        words += f", {checked.skipped_objects} could not be read"
    lines = [f"checked: structure, {words}"]
    if checked.report is not None:
        hashes = f"{checked.object_hashes} objects"
        if checked.file_hashes:
            hashes = f"{checked.file_hashes} files"
        if checked.directory_hash:
            hashes += " and the directory"
        lines.append(printable(f"checked: SHA-256 of {hashes}, with {checked.report}"))
    return lines
