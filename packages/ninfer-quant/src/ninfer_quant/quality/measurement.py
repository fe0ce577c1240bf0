"""Measuring one artifact: what it predicts, how well it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninfer_format.commandline import new_output
from ninfer_quant.quality.tasks import TASK_CONTEXT, Task, score_tasks
from ninfer_runtime.engine.loading import LoadedModel, load, load_frontend
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.eval.divergence import Divergence
from ninfer_runtime.eval.half_windows import half_windows, score_half_windows
from ninfer_runtime.eval.logits_file import LogitsReference, LogitsWriter, describe_text

if TYPE_CHECKING:
    import numpy as np

    from ninfer_runtime.eval.logits_file import ScoredText
    from ninfer_runtime.eval.perplexity import PerplexityReport, Window

Advance = Callable[[int], None]


@dataclass(frozen=True, eq=False, slots=True)
class Examination:
    """What models are asked.

    Attributes:
        token_ids: The tokens of a text.
        windows: Its windows, of which the second half is scored.
        scored: What a file of predictions says about them.
        tasks: Chats to answer.
    """

    token_ids: Sequence[int]
    windows: tuple[Window, ...]
    scored: ScoredText
    tasks: tuple[Task, ...]

    @property
    def steps(self) -> int:
        """How much `measure` counts: scored positions and chats."""
        return self.scored.positions + len(self.tasks)


def prepare_examination(
    artifact: Path, text: Path, *, context: int, chunks: int | None, tasks: Sequence[Task]
) -> Examination:
    """Cut a text for the models that have the tokenizer of an artifact.

    Raises:
        UsageError: The text is no UTF-8, or shorter than a window.
    """
    from ninfer_format.errors import UsageError

    content = text.read_bytes()
    tokenizer = load_frontend(EngineOptions(model=artifact)).tokenizer
    try:
        token_ids = tokenizer.encode(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8: {error}", path=text) from error
    windows = half_windows(len(token_ids), context, chunks)
    scored = describe_text(
        content,
        token_ids,
        vocabulary=tokenizer.public_tokens,
        context=context,
        windows=len(windows),
    )
    return Examination(token_ids, windows, scored, tuple(tasks))


def measure(
    artifact: Path, examination: Examination, reference: Path, advance: Advance
) -> dict[str, Any]:
    """Examine a model.

    Args:
        artifact: The model.
        examination: What it is asked.
        reference: Predictions that its own are compared with. If there is no such file yet, the
            model is the reference, and its predictions are kept there.
        advance: Counts steps.

    Returns:
        JSON values: ``perplexity``, ``mean_nll``, ``divergence`` (None for the reference) and
        ``tasks`` (None without chats).

    Raises:
        RequestError: A prediction is not finite.
        CheckpointError: The reference is damaged or of something else.
    """
    context = examination.scored.context
    longest = max(context, TASK_CONTEXT) if examination.tasks else context
    loaded = load(EngineOptions(model=artifact, max_context=longest))
    if reference.exists():
        report, divergence = _compare(loaded, examination, reference, advance)
    else:
        report, divergence = _keep(loaded, examination, reference, advance), None
    tasks = None
    if examination.tasks:
        score = score_tasks(loaded.program, loaded.frontend, examination.tasks, advance)
        tasks = {
            "answered": score.answered,
            "correct": score.correct,
            "accuracy": score.correct / score.answered,
            "by_kind": {
                kind: {"answered": answered, "correct": correct}
                for kind, (answered, correct) in score.by_kind.items()
            },
        }
    return {
        "mean_nll": report.mean_nll,
        "perplexity": report.perplexity,
        "divergence": divergence,
        "tasks": tasks,
    }


def _compare(
    loaded: LoadedModel, examination: Examination, path: Path, advance: Advance
) -> tuple[PerplexityReport, dict[str, Any]]:
    reference = LogitsReference(path)
    reference.require(examination.scored)
    divergence = Divergence()
    position = 0

    def take(log_probabilities: np.ndarray, targets: np.ndarray) -> None:
        nonlocal position
        end = position + len(targets)
        divergence.add(*reference.read(position, end), log_probabilities, targets)
        position = end

    report = _score(loaded, examination, take, advance)
    return report, asdict(divergence.report())


def _keep(
    loaded: LoadedModel, examination: Examination, path: Path, advance: Advance
) -> PerplexityReport:
    with ExitStack() as stack:
        writer = LogitsWriter(
            stack.enter_context(new_output(path)), examination.scored, loaded.info.name
        )
        report = _score(loaded, examination, lambda values, targets: writer.add(values), advance)
        writer.finish()
    return report


def _score(
    loaded: LoadedModel,
    examination: Examination,
    take: Callable[[np.ndarray, np.ndarray], None],
    advance: Advance,
) -> PerplexityReport:
    return score_half_windows(
        loaded.program,
        examination.token_ids,
        examination.windows,
        public_tokens=examination.scored.vocabulary,
        consumer=take,
        advance=advance,
    )
