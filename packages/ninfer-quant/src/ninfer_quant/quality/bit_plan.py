"""Allocating formats to the matrices of a model so that it has a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ninfer_format.errors import UsageError
from ninfer_format.workers import Advance, run_tasks
from ninfer_quant.array_module import Device
from ninfer_quant.calibration.records import CalibrationFile
from ninfer_quant.errors import ConversionError
from ninfer_quant.pipeline.conversion import Conversion, ConversionRequest, plan_conversion
from ninfer_quant.pipeline.prepare import WeightObject
from ninfer_quant.quality.allocation import Choice, allocate, lower_hull
from ninfer_quant.quality.sensitivity import (
    DIRECT,
    FORMATS,
    Candidate,
    Metric,
    Sensitivity,
    measure_sensitivity,
)
from ninfer_quant.recipes.loading import LoadedRecipe

EMBEDDING = "text/token_embedding"
HEAD = "text/output_head"
CONTROLS = ("a_projection", "b_projection", "router", "shared_score")
"""Last parts of the names of small projections that decide much; they stay as they are."""
_PLANNED_NAME = "model.ninfer"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan is made from.

    Attributes:
        model: Checkpoint folder.
        components: Components of the artifact to be.
        formats: Formats to choose from.
        metric: How errors are counted.
        calibration: What the metrics but ``plain`` need.
        rows: Rows of every matrix that are measured.
        device: Where weights are quantized.
        jobs: Worker threads.
    """

    model: Path
    components: tuple[str, ...] = ("text",)
    formats: tuple[str, ...] = FORMATS
    metric: Metric = "plain"
    calibration: Path | None = None
    rows: int = 256
    device: Device = "cpu"
    jobs: int = 1


@dataclass(frozen=True, eq=False, slots=True)
class PlannedObject:
    """The decision about one object.

    Attributes:
        sensitivity: What is known of it.
        weight: What its errors count for; see `importance`.
        chosen: How it is stored.
        next_gain: Weighted error that the next larger format on the hull would save for a MiB;
            None if there is none.
    """

    sensitivity: Sensitivity
    weight: float
    chosen: Candidate
    next_gain: float | None


@dataclass(frozen=True, eq=False, slots=True)
class BitPlan:
    """A plan.

    Attributes:
        model: Name of the model.
        objects: Decisions in the order of the model.
        fixed_bytes: What all other tensors take.
        elements: Elements of all tensors.
        num_bytes: Bytes of all tensors.
        error: Sum of the weighted relative squared errors.
        last_gain: Error saved for a MiB by the last step that was taken; None if none was.
    """

    model: str
    objects: tuple[PlannedObject, ...]
    fixed_bytes: int
    elements: int
    num_bytes: int
    error: float
    last_gain: float | None

    @property
    def bits_per_weight(self) -> float:
        """Bits of all tensors over their elements."""
        return 8 * self.num_bytes / self.elements


class BitPlanner:
    """Plans for one model.

    Args:
        options: What to plan.

    Attributes:
        conversion: The model in its direct formats; its objects are what gets one format each.

    Raises:
        UsageError: A metric lacks its calibration, or a format cannot be planned.
        CheckpointError: The checkpoint or the calibration is damaged.
    """

    def __init__(self, options: PlanOptions) -> None:
        self._options = options
        _check(options)
        self._calibration = (
            None if options.calibration is None else CalibrationFile(options.calibration)
        )
        self.conversion: Conversion = plan_conversion(
            ConversionRequest(
                model=options.model,
                recipe=LoadedRecipe("direct", lambda *_: None),
                components=options.components,
            )
        )
        records = self.conversion.plan_artifact({}, _PLANNED_NAME).directory.tensors
        self._weights = [
            weight for weight in self.conversion.preparation.weights if _is_planned(weight)
        ]
        planned = {weight.target.id for weight in self._weights}
        self._fixed_bytes = sum(record.num_bytes for record in records if record.id not in planned)
        self._elements = sum(record.elements for record in records)

    @property
    def steps(self) -> int:
        """How much `measure` will count."""
        return len(self._weights)

    def measure(self, advance: Advance) -> list[Sensitivity]:
        """Find out what every format costs in every object.

        Raises:
            ConversionError: A weight is not finite.
        """
        tasks = [partial(self._measure, weight) for weight in self._weights]
        return run_tasks(tasks, jobs=self._options.jobs, advance=advance)

    def _measure(self, weight: WeightObject, advance: Advance) -> Sensitivity:
        options = self._options
        found = measure_sensitivity(
            weight,
            options.formats,
            metric=options.metric,
            calibration=self._calibration,
            rows=options.rows,
            device=options.device,
        )
        if not found.candidates:
            raise ConversionError(
                f"no format of the plan can store {', '.join(found.parameters)}",
                hint=f"add {DIRECT} to --formats",
            )
        advance(1, found.parameters[0])
        return found

    def plan(self, sensitivities: Sequence[Sensitivity], target_bpw: float) -> BitPlan:
        """Choose formats.

        Args:
            sensitivities: What `measure` gave.
            target_bpw: Most bits per weight, over all parameters of the components.

        Raises:
            UsageError: The smallest formats take more than the target.
        """
        limit = int(target_bpw * self._elements / 8) - self._fixed_bytes
        layers = int(self.conversion.model.config["num_hidden_layers"])
        weights = [importance(item.parameters, layers) for item in sensitivities]
        items = [
            [Choice(candidate.num_bytes, weight * candidate.error) for candidate in item.candidates]
            for item, weight in zip(sensitivities, weights, strict=True)
        ]
        allocation = allocate(items, limit)
        if allocation is None:
            least = self._fixed_bytes + sum(
                min(choice.num_bytes for choice in choices) for choices in items
            )
            raise UsageError(
                f"--target-bpw {target_bpw:g} is too small: with the smallest "
                f"formats the model has {8 * least / self._elements:.4f} bits per weight"
            )
        return BitPlan(
            self.conversion.name,
            tuple(
                PlannedObject(item, weight, item.candidates[index], _next_gain(choices, index))
                for item, weight, choices, index in zip(
                    sensitivities, weights, items, allocation.chosen, strict=True
                )
            ),
            self._fixed_bytes,
            self._elements,
            self._fixed_bytes + allocation.num_bytes,
            allocation.error,
            None if allocation.last_gain is None else allocation.last_gain * 2**20,
        )


def importance(parameters: Sequence[str], layers: int) -> float:
    """What the relative squared errors of an object count for.

    The output head works on the sum of the embedding and two products of every layer; an error in
    one of these terms is that much smaller in the sum. (On the tiny model the head is even some
    thirty times as sensitive as a matrix of a layer.)

    Args:
        parameters: What is in the object.
        layers: Layers of the text model.
    """
    return 1.0 if HEAD in parameters else 1 / (2 * layers + 1)


def _check(options: PlanOptions) -> None:
    if options.metric != "plain" and options.calibration is None:
        raise UsageError(
            f"--metric {options.metric} needs --calibration FILE", hint="see ninfer-quant calibrate"
        )
    for name in options.formats:
        if name not in FORMATS:
            raise UsageError(
                f"--formats: {name!r} cannot be planned", hint=f"formats are {', '.join(FORMATS)}"
            )


def _is_planned(weight: WeightObject) -> bool:
    """Whether an object holds large matrices that an activation is multiplied with, or tokens."""
    names = weight.request.parameter_names
    if weight.target.format != DIRECT or len(weight.target.shape) != 2:
        return False
    if names == (EMBEDDING,):
        return True
    return all(part.uses for part in weight.request.inputs) and not any(
        name.rsplit("/", 1)[-1] in CONTROLS for name in names
    )


def _next_gain(choices: Sequence[Choice], index: int) -> float | None:
    """Error that the next choice on the hull saves for a MiB."""
    current = choices[index]
    larger = [choices[i] for i in lower_hull(choices) if choices[i].num_bytes > current.num_bytes]
    if not larger or larger[0].error >= current.error:
        return None
    saved = current.error - larger[0].error
    return saved / (larger[0].num_bytes - current.num_bytes) * 2**20
