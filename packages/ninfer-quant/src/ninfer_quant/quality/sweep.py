"""Several recipes on one model: converted, measured, compared with the model in BF16.

All artifacts and results are kept in a work folder. What is finished there is not done again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ninfer_format import open_artifact
from ninfer_format.commandline import Progress, new_output
from ninfer_format.commandline.progress import Unit
from ninfer_format.errors import UsageError
from ninfer_format.workers import worker_count
from ninfer_quant.array_module import Device
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion, work_bytes
from ninfer_quant.quality.compare import Comparison
from ninfer_quant.quality.compared_model import open_compared
from ninfer_quant.quality.measurement import Examination, measure, prepare_examination
from ninfer_quant.quality.tasks import Task
from ninfer_quant.recipes.loading import LoadedRecipe
from ninfer_quant.work_folder import locked_work_folder

REFERENCE = "bf16"
"""Name of what the recipes are compared with: every parameter in its direct format."""
_LOGITS = "reference.logits"


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What is swept.

    Attributes:
        model: Checkpoint folder.
        recipes: Recipes by the name that the table calls them.
        text: What the models predict.
        work_folder: Where artifacts and results are kept.
        context: Tokens of a window.
        chunks: Most windows; None for all.
        tasks_file: Where the tasks are from.
        tasks: Chats to answer.
        sources: Paths or Hub ids of what recipes read beside the model, by name.
        device: Where weights are quantized.
        jobs: Worker threads of a conversion.
    """

    model: Path
    recipes: Mapping[str, LoadedRecipe]
    text: Path
    work_folder: Path
    context: int = 512
    chunks: int | None = None
    tasks_file: Path | None = None
    tasks: Sequence[Task] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    device: Device = "cpu"
    jobs: int = 1


Phase = Callable[[str, int, Unit], Progress]
"""Shows one piece of work: what it is, its size and the unit of that."""


def run_sweep(options: SweepOptions, phase: Phase) -> list[dict[str, Any]]:
    """Convert and measure the reference and every recipe.

    Args:
        options: What.
        phase: Shows the progress of conversions and measurements, one after the other.

    Returns:
        JSON values, the reference first: ``recipe``, ``artifact``, ``file_bytes``,
        ``bits_per_weight``, ``relative_frobenius`` and what `measure` says.

    Raises:
        UsageError: The work folder is of another sweep, or an input is wrong.
        NInferError: A conversion or a model fails.
    """
    with locked_work_folder(options.work_folder, _settings(options), "sweep"):
        return _Sweep(options, phase).run()


class _Sweep:
    def __init__(self, options: SweepOptions, phase: Phase) -> None:
        self._options = options
        self._phase = phase
        self._recipes = {REFERENCE: LoadedRecipe(REFERENCE, lambda *_: None), **options.recipes}

    def run(self) -> list[dict[str, Any]]:
        options = self._options
        self._convert(REFERENCE)
        examination = prepare_examination(
            self._artifact(REFERENCE),
            options.text,
            context=options.context,
            chunks=options.chunks,
            tasks=options.tasks,
        )
        return [self._row(name, examination) for name in self._recipes]

    def _row(self, name: str, examination: Examination) -> dict[str, Any]:
        known = self._known_result(name)
        if known is not None:
            return known
        self._convert(name)
        row = {
            "recipe": name,
            "artifact": self._artifact(name).name,
            **_sizes(self._artifact(name)),
            "relative_frobenius": self._weight_error(name),
        }
        if name == REFERENCE:
            # Predictions without a result are of a run that did not get to its tasks.
            self._logits.unlink(missing_ok=True)
        with self._phase(f"measuring {name}", examination.steps, "steps") as progress:
            row |= measure(self._artifact(name), examination, self._logits, progress.advance)
        with new_output(self._result(name), force=True) as file:
            kept = {"identity": self._recipes[name].identity, "row": row}
            file.write(f"{json.dumps(kept, ensure_ascii=False, indent=2)}\n".encode())
        return row

    def _convert(self, name: str) -> None:
        output = self._artifact(name)
        if self._is_converted(name):
            return
        request = ConversionRequest(
            model=self._options.model,
            recipe=self._recipes[name],
            sources=self._options.sources,
            name=name,
            device=self._options.device,
        )
        conversion = plan_conversion(request)
        run_options = RunOptions(output, force=True, jobs=self._options.jobs, verify="full")
        total = work_bytes(conversion, run_options)
        with self._phase(f"converting {name}", total, "bytes") as progress:
            run_conversion(conversion, run_options, progress.advance)

    def _is_converted(self, name: str) -> bool:
        """Whether there is an artifact, made by the recipe as it is now."""
        if not self._artifact(name).exists():
            return False
        with open_artifact(self._artifact(name)) as artifact:
            recorded = artifact.directory.provenance.get("recipe")
        return recorded == self._recipes[name].identity

    def _known_result(self, name: str) -> dict[str, Any] | None:
        path = self._result(name)
        if not path.exists() or not self._is_converted(name):
            return None
        try:
            known = json.loads(path.read_bytes())
            row: dict[str, Any] = known["row"]
            is_same = known["identity"] == self._recipes[name].identity
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError("is no result of a sweep", path=path, hint="remove it") from error
        if name == REFERENCE and not self._logits.exists():
            return None
        return row if is_same else None

    def _weight_error(self, name: str) -> float:
        """Relative Frobenius error of all weights together."""
        models = [open_compared(self._artifact(item)) for item in (REFERENCE, name)]
        comparison = Comparison(models)
        found = comparison.run(jobs=worker_count(), advance=lambda elements, item: None)
        agreements = [item.agreements[0] for item in found]
        pooled = replace(agreements[0])
        for agreement in agreements[1:]:
            pooled.merge(agreement)
        return pooled.relative_frobenius

    def _artifact(self, name: str) -> Path:
        return self._options.work_folder / f"{_file_stem(name)}.ninfer"

    def _result(self, name: str) -> Path:
        return self._options.work_folder / f"{_file_stem(name)}.result.json"

    @property
    def _logits(self) -> Path:
        return self._options.work_folder / _LOGITS


def name_recipes(references: Sequence[str]) -> dict[str, str]:
    """Short names for references to recipes: a built-in name, or that of the file and function.

    Returns:
        References by name.

    Raises:
        UsageError: Two have the same name, or one that is reserved.
    """
    named: dict[str, str] = {}
    stems = {_file_stem(REFERENCE)}
    for reference in references:
        name = reference.rsplit("/", 1)[-1].replace(".py", "")
        if _file_stem(name) in stems:
            raise UsageError(
                f"--recipes {reference}: another one is called {name!r} too",
                hint=f"{REFERENCE} is always measured",
            )
        stems.add(_file_stem(name))
        named[name] = reference
    return named


def _file_stem(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)


def _settings(options: SweepOptions) -> dict[str, str]:
    tasks = "" if options.tasks_file is None else _sha256(options.tasks_file)
    return {
        "model": _identity(options.model),
        "text": _sha256(options.text),
        "context": str(options.context),
        "chunks": str(options.chunks),
        "tasks": tasks,
        "task_count": str(len(options.tasks)),
        "sources": json.dumps(dict(options.sources), sort_keys=True),
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _identity(folder: Path) -> str:
    """Tells a checkpoint from others by names, sizes and times of its files."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _sizes(path: Path) -> dict[str, Any]:
    """Bytes of all files, and bits per weight over all parameters: auxiliaries count too."""
    with open_artifact(path) as artifact:
        directory = artifact.directory
        tensors = sum(record.num_bytes for record in directory.tensors)
        weights = [record for record in directory.tensors if record.id.startswith("weight/")]
        elements = sum(record.elements for record in weights)
        paths = [path, *(path.with_name(file.path) for file in directory.files if file.path)]
    return {
        "file_bytes": sum(item.stat().st_size for item in paths),
        "bits_per_weight": 8 * tensors / elements,
    }
