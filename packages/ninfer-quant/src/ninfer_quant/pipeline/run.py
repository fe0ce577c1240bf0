"""Running a planned conversion: hash, write, verify, report, publish."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_format import ArtifactPlan, ArtifactWriter, open_artifact
from ninfer_format.commandline import refuse_existing
from ninfer_quant.pipeline.conversion import Conversion
from ninfer_quant.pipeline.execute import ParameterErrors, write_tasks
from ninfer_quant.pipeline.hashing import hash_files
from ninfer_quant.pipeline.report import Outcome, build_report, dump_report
from ninfer_quant.pipeline.staging import (
    check_disk_space,
    disk_full_as_error,
    publish,
    refuse_inputs_as_outputs,
    remove_stale_parts,
    report_path,
    staging_folder,
)
from ninfer_quant.pipeline.statistics import ErrorSums
from ninfer_quant.pipeline.verify import VerifyMode, verify_tasks
from ninfer_quant.pipeline.workers import Advance, run_tasks


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a conversion runs.

    Attributes:
        output: The entry file to be.
        force: Replace existing files.
        jobs: Number of worker threads.
        verify: How the result is compared with its source.
        artifact_id: 16 bytes that identify the artifact; random when None.
        writes_report: Put a conversion report beside the artifact.
    """

    output: Path
    force: bool = False
    jobs: int = 1
    verify: VerifyMode = "sample"
    artifact_id: bytes | None = None
    writes_report: bool = True


def work_bytes(conversion: Conversion, options: RunOptions) -> int:
    """How much `run_conversion` will count: bytes hashed, written, compared and hashed again."""
    hashed = sum(path.stat().st_size for path in conversion.source_files)
    plan = _placeholder_plan(conversion, options.output)
    tensors = sum(record.num_bytes for record in plan.directory.tensors)
    compared = tensors if options.verify == "full" else 0
    return hashed + tensors + compared + _file_bytes(plan)


def run_conversion(conversion: Conversion, options: RunOptions, advance: Advance) -> dict[str, Any]:
    """Write the artifact and its report; nothing of them remains after a failure.

    Args:
        conversion: What to convert.
        options: How.
        advance: Counts bytes of work, `work_bytes` in all.

    Returns:
        The report.

    Raises:
        UsageError: An output exists or is an input.
        ConversionError: A weight is not finite.
        VerificationError: What was written differs from its source.
        DiskSpaceError: The disk is too small.
    """
    started = time.perf_counter()
    output, jobs = options.output, options.jobs
    _check_outputs(conversion, options)
    hashes = hash_files(conversion.source_files, jobs=jobs, advance=advance)
    with disk_full_as_error(output), staging_folder(output) as folder:
        writer = ArtifactWriter(
            folder / output.name, conversion.plan_artifact(hashes), options.artifact_id
        )
        with writer:
            tasks = write_tasks(conversion.preparation, writer)
            errors = _merge(run_tasks(tasks, jobs=jobs, advance=advance))
        _verify(conversion, writer.path, options, advance)
        outcome = Outcome(
            output=output,
            plan=writer.plan,
            artifact_id=writer.artifact_id,
            errors=errors,
            source_hashes=hashes,
            file_hashes=hash_files(writer.file_paths, jobs=jobs, advance=advance),
            verify=options.verify,
            jobs=jobs,
            seconds=conversion.seconds + time.perf_counter() - started,
            warnings=(*conversion.warnings, *_rounding_warnings(conversion, errors)),
        )
        report = build_report(conversion, outcome)
        _publish(folder, writer.file_paths, report, options)
    return report


def _placeholder_plan(conversion: Conversion, output: Path) -> ArtifactPlan:
    """The plan with made-up hashes, which are as long as the real ones."""
    plan = conversion.plan_artifact(dict.fromkeys(conversion.source_files, "0" * 64))
    return plan.for_entry(output.name)


def _file_bytes(plan: ArtifactPlan) -> int:
    parts = len(plan.segments) - 1
    return plan.entry_payload_start + plan.directory.payload_bytes + 4096 * parts


def _check_outputs(conversion: Conversion, options: RunOptions) -> None:
    output = options.output
    plan = _placeholder_plan(conversion, output)
    parts = [output.with_name(file.path) for file in plan.directory.files if file.path is not None]
    reports = [report_path(output)] if options.writes_report else []
    outputs = [output, *parts, *reports]
    refuse_inputs_as_outputs(outputs, conversion.input_files)
    for path in outputs:
        refuse_existing(path, force=options.force)
    check_disk_space(output, _file_bytes(plan))


def _merge(results: Iterable[ParameterErrors]) -> ParameterErrors:
    merged: ParameterErrors = {}
    for errors in results:
        for name, sums in errors.items():
            merged.setdefault(name, ErrorSums()).merge(sums)
    return merged


def _verify(conversion: Conversion, entry: Path, options: RunOptions, advance: Advance) -> None:
    with open_artifact(entry) as artifact:
        tasks = verify_tasks(conversion.preparation, artifact, options.verify)
        run_tasks(tasks, jobs=options.jobs, advance=advance)


def _rounding_warnings(conversion: Conversion, errors: ParameterErrors) -> list[str]:
    """Say where a direct format did not hold the checkpoint's values exactly."""
    changed = {
        part.parameter: errors[part.parameter].max_error
        for weight in conversion.preparation.weights
        if weight.method_name == "cast_direct"
        for part in weight.request.inputs
        if errors[part.parameter].max_error > 0
    }
    if not changed:
        return []
    worst = max(changed, key=changed.__getitem__)
    return [
        f"rounding to a direct format changed values (parameters: {len(changed)}), "
        f"most in {worst}, by up to {changed[worst]:.3g}"
    ]


def _publish(
    folder: Path, files: tuple[Path, ...], report: dict[str, Any], options: RunOptions
) -> None:
    output = options.output
    entry, *parts = (path.name for path in files)
    names = list(parts)
    if options.writes_report:
        report_file = folder / report_path(output).name
        with report_file.open("wb") as file:
            file.write(dump_report(report))
            file.flush()
            os.fsync(file.fileno())
        names.append(report_file.name)
    publish(folder, [*names, entry], output.parent, force=options.force)
    if options.force:
        remove_stale_parts(output, parts)
