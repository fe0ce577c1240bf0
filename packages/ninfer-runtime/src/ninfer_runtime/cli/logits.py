"""What ``ninfer-perplexity`` does with --logits-out and --logits-reference."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ninfer_format.commandline import (
    Progress,
    Terminal,
    new_output,
    refuse_existing,
    refuse_inputs_as_outputs,
)
from ninfer_format.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ninfer_runtime.engine.loading import LoadedModel
    from ninfer_runtime.eval.divergence import DivergenceReport
    from ninfer_runtime.eval.perplexity import PerplexityReport


def check_logits_options(options: dict[str, Any]) -> bool:
    """Say whether whole predictions are kept or compared.

    Raises:
        UsageError: Options do not go together, or the output exists.
    """
    out, reference = options["logits_out"], options["logits_reference"]
    if out is None and reference is None:
        for name in ("chunks", "force"):
            if options[name]:
                raise UsageError(f"--{name} is for --logits-out or --logits-reference")
        return False
    if options["text"] is None:
        raise UsageError("--logits-out and --logits-reference need --text")
    half = options["context"] // 2
    if options["stride"] not in (None, half):
        raise UsageError(
            f"--stride {options['stride']}: with logits the second halves of windows are scored",
            hint=f"leave it out, or give {half}",
        )
    if out is None:
        if options["force"]:
            raise UsageError("--force is for --logits-out")
        return True
    refuse_existing(out, force=options["force"])
    inputs = [options["text"], reference, options["model"]]
    refuse_inputs_as_outputs([out], [path for path in inputs if path is not None])
    return True


def score_logits(
    terminal: Terminal, loaded: LoadedModel, token_ids: Sequence[int], options: dict[str, Any]
) -> tuple[PerplexityReport, DivergenceReport | None]:
    """Score second halves of windows; keep the predictions, compare them, or both.

    Raises:
        UsageError: The text is shorter than a window, or the context too short.
        CheckpointError: The reference is damaged, or of something else.
        RequestError: A logit is not finite.
    """
    from ninfer_runtime.eval.divergence import Divergence
    from ninfer_runtime.eval.half_windows import half_windows, score_half_windows
    from ninfer_runtime.eval.logits_file import LogitsReference, LogitsWriter, describe_text

    windows = half_windows(len(token_ids), options["context"], options["chunks"])
    scored = describe_text(
        options["text"].read_bytes(),
        token_ids,
        vocabulary=loaded.info.public_tokens,
        context=options["context"],
        windows=len(windows),
    )
    reference = None
    if options["logits_reference"] is not None:
        reference = LogitsReference(options["logits_reference"])
        reference.require(scored)
    divergence = Divergence()
    position = 0
    with ExitStack() as stack:
        writer = None
        if options["logits_out"] is not None:
            file = stack.enter_context(new_output(options["logits_out"], force=options["force"]))
            writer = LogitsWriter(file, scored, loaded.info.name)

        def take(log_probabilities: np.ndarray, targets: np.ndarray) -> None:
            nonlocal position
            end = position + len(targets)
            if writer is not None:
                writer.add(log_probabilities)
            if reference is not None:
                divergence.add(*reference.read(position, end), log_probabilities, targets)
            position = end

        with Progress(terminal, "scoring", total=scored.positions) as progress:
            report = score_half_windows(
                loaded.program,
                token_ids,
                windows,
                public_tokens=loaded.info.public_tokens,
                consumer=take,
                advance=progress.advance,
            )
        if writer is not None:
            writer.finish()
    return report, None if reference is None else divergence.report()
