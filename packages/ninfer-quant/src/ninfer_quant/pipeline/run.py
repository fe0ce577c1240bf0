"""Running a planned conversion: hash, write, verify, report, publish."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_format import ArtifactPlan, ArtifactWriter, open_artifact
from ninfer_format.commandline import refuse_existing, refuse_inputs_as_outputs
from ninfer_format.container.framing import HEADER_BYTES
from ninfer_format.verification.conversion_report import report_path
from ninfer_format.verification.hashes import hash_directory, hash_files, hash_objects
from ninfer_format.workers import Advance, run_tasks
from ninfer_quant.pipeline.conversion import Conversion
from ninfer_quant.pipeline.execute import ParameterErrors, write_tasks
from ninfer_quant.pipeline.report import Outcome, build_report, dump_report
from ninfer_quant.pipeline.staging import (
    check_disk_space,
    disk_full_as_error,
    publish,
    refuse_impossible_names,
    staging_folder,
)
from ninfer_quant.pipeline.verify import VerifyMode, verify_tasks
from ninfer_quant.pipeline.written_bytes import HashingWriter


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
    """How much `run_conversion` will count: bytes hashed, written, compared and hashed again.

    What is written is hashed twice: by file, as anyone can compare it, and by object, so that
    ninfer-inspect can name what has changed.
    """
    hashed = sum(path.stat().st_size for path in conversion.source_files)
    plan = _placeholder_plan(conversion, options.output)
    tensors = sum(record.num_bytes for record in plan.directory.tensors)
    objects = sum(record.num_bytes for record in plan.directory.objects)
    compared = 0
    if options.verify == "full":
        compared = tensors
    elif options.verify == "hash":
        compared = HEADER_BYTES + len(plan.json_bytes) + objects
    return hashed + tensors + compared + plan.file_bytes + objects


def check_outputs(conversion: Conversion, options: RunOptions) -> None:
    """Refuse outputs that cannot be written; `run_conversion` does it too, before it begins.

    Raises:
        UsageError: An output exists, is an input or has a name that no file can have, or the
            limit for a file is too small.
        DiskSpaceError: The disk is too small.
    """
    output = options.output
    plan = _placeholder_plan(conversion, output)
    parts = [output.with_name(file.path) for file in plan.directory.files if file.path is not None]
    reports = [report_path(output)] if options.writes_report else []
    outputs = [output, *parts, *reports]
    refuse_impossible_names(outputs)
    refuse_inputs_as_outputs(outputs, conversion.input_files)
    for path in outputs:
        refuse_existing(path, force=options.force)
    check_disk_space(output, plan.file_bytes)


def run_conversion(conversion: Conversion, options: RunOptions, advance: Advance) -> dict[str, Any]:
    """Write the artifact and its report; nothing of them remains after a failure.

    Args:
        conversion: What to convert.
        options: How.
        advance: Counts bytes of work, `work_bytes` in all.

    Returns:
        The report.

    Raises:
        UsageError: See `check_outputs`; or an output appeared meanwhile.
        ConversionError: A weight is not finite.
        VerificationError: What was written differs from its source.
        DiskSpaceError: The disk is too small.
    """
    started = time.perf_counter()
    output, jobs = options.output, options.jobs
    check_outputs(conversion, options)
    hashes = hash_files(conversion.source_files, jobs=jobs, advance=advance)
    with disk_full_as_error(output), staging_folder(output) as folder:
        writer_type = HashingWriter if options.verify == "hash" else ArtifactWriter
        writer = writer_type(
            folder / output.name,
            conversion.plan_artifact(hashes, output.name),
            options.artifact_id,
        )
        with writer:
            tasks = write_tasks(conversion.preparation, writer)
            results = run_tasks(tasks, jobs=jobs, advance=advance)
        errors = {key: sums for result in results for key, sums in result.items()}
        with open_artifact(writer.path) as artifact:
            if isinstance(writer, HashingWriter):
                compared = writer.verify_tasks(artifact)
            else:
                compared = verify_tasks(conversion.preparation, artifact, options.verify)
            run_tasks(compared, jobs=jobs, advance=advance)
            object_hashes = hash_objects(artifact, jobs=jobs, advance=advance)
            directory_hash = hash_directory(artifact)
        outcome = Outcome(
            output=output,
            plan=writer.plan,
            artifact_id=writer.artifact_id,
            errors=errors,
            source_hashes=hashes,
            file_hashes=hash_files(writer.file_paths, jobs=jobs, advance=advance),
            object_hashes=object_hashes,
            directory_hash=directory_hash,
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
    hashes = dict.fromkeys(conversion.source_files, "0" * 64)
    return conversion.plan_artifact(hashes, output.name)


def _rounding_warnings(conversion: Conversion, errors: ParameterErrors) -> list[str]:
    """Say where a direct format did not hold the checkpoint's values exactly."""
    changed = {
        part.parameter: max_error
        for weight in conversion.preparation.weights
        if weight.method_name == "cast_direct"
        for part in weight.request.inputs
        if (max_error := errors[weight.target.id, part.parameter].max_error) > 0
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
    entry, *names = (path.name for path in files)
    if options.writes_report:
        report_file = folder / report_path(options.output).name
        report_file.write_bytes(dump_report(report))
        names.append(report_file.name)
    publish(folder, [*names, entry], options.output, force=options.force)
