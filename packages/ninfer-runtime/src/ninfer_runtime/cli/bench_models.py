"""What ``ninfer-bench`` does with a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ninfer_format.commandline import Progress, Terminal
from ninfer_format.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from ninfer_runtime.bench.models import Test
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.device.cuda import CudaDevice
    from ninfer_runtime.engine.executor import Executor
    from ninfer_runtime.engine.executor_options import ExecutorOptions
    from ninfer_runtime.models.architecture import LanguageModel

DEFAULT_PROMPT, DEFAULT_GENERATED = 512, 128


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to be measured.

    Attributes:
        name: What it is.
        model: The model.
        public_tokens: Token ids below this exist.
    """

    name: str
    model: LanguageModel
    public_tokens: int


def tests_of(options: dict[str, Any]) -> list[Test]:
    """The tests that the options describe."""
    from ninfer_runtime.bench.models import Test

    pairs = [
        *((prompt, 0) for prompt in options["n_prompt"]),
        *((0, generated) for generated in options["n_gen"]),
        *options["prompt_gen"],
    ]
    if not pairs:
        pairs = [(DEFAULT_PROMPT, 0), (0, DEFAULT_GENERATED)]
    return [
        Test(prompt, generated, depth, sequences)
        for prompt, generated in pairs
        for depth in options["depth"]
        for sequences in options["concurrency"]
        # Prompts are executed one after another: several say nothing that one does not.
        if generated or sequences == options["concurrency"][0]
    ]


def time_model(terminal: Terminal, options: dict[str, Any]) -> dict[str, Any]:
    """Measure a model.

    Returns:
        The document.

    Raises:
        UsageError: Options do not go together.
        CapacityError: Weights or states do not fit.
    """
    from ninfer_runtime.bench import environment
    from ninfer_runtime.bench.models import run_tests
    from ninfer_runtime.engine.loading import open_device

    tests = tests_of(options)
    device = open_device(options["backend"], options["device"])
    if options["profile"] and device.kind != "cuda":
        raise UsageError("--profile needs a GPU")
    read_bytes_s = _read_speed(terminal, device)
    subject = _subject(terminal, device, options)
    corpus = _corpus(options["corpus"], subject)
    executor = _executor(terminal, subject, tests, options)
    repetitions, warmup = options["repetitions"], options["warmup"]
    with Progress(terminal, "measuring", total=len(tests)) as progress:
        rows = list(
            run_tests(
                executor,
                tests,
                repetitions=repetitions,
                warmup=warmup,
                read_bytes_s=read_bytes_s,
                corpus=corpus,
                advance=progress.advance,
            )
        )
    document = {
        "environment": environment.describe(device) | {"read_bytes_s": read_bytes_s},
        "model": {
            "name": subject.name,
            "weight_bytes": subject.model.weight_bytes,
            "state_bytes": executor.state.num_bytes,
            "kv_dtype": executor.options.kv_format.name,
            "prefill_chunk": executor.options.prefill_chunk,
            "cuda_graph": executor.options.use_graphs,
        },
        "repetitions": repetitions,
        "warmup": warmup,
        "tests": rows,
    }
    if options["profile"]:
        document["profiles"] = dict(_profiles(executor, tests))
    return document


def table(document: dict[str, Any]) -> Iterator[str]:
    """The lines of a document's tables."""
    facts, model = document["environment"], document["model"]
    yield (
        f"{facts['device']}: {model['name']}, {model['weight_bytes'] / 1e9:.2f} GB of weights,"
        f" keys and values in {model['kv_dtype']}"
    )
    yield f"{'test':<22} {'tok/s':>10} {'±':>8} {'ms/step':>8} {'roofline':>9} {'of it':>6}"
    for row in document["tests"]:
        step, roofline = row.get("ms_per_step"), row.get("roofline_tok_s")
        ratio = f"   {row['ratio']:.3f} of before" if "ratio" in row else ""
        more = f" {row['tflop_s']:.0f} TFLOP/s" if "tflop_s" in row else ""
        yield (
            f"{row['test']:<22} {row['tok_s']:>10.1f} {row['tok_s_stddev']:>8.1f}"
            + (f" {step:>8.3f}" if step else " " * 9)
            + (f" {roofline:>9.1f} {row['fraction_of_roofline']:>6.1%}" if roofline else "")
            + more
            + ratio
        )
    for name, found in document.get("profiles", {}).items():
        total = sum(row["us"] for row in found["kernels"])
        yield f"\n{name}: {found['us']:.0f} us; its kernels, each alone, {total:.0f} us"
        for row in found["kernels"]:
            yield (
                f"{row['us']:>10.1f} us {row['us'] / total:>6.1%} {row['launches']:>5} x"
                f" {row['us'] / row['launches']:>8.2f}  {row['op']}: {row['kernel']}"
            )


def _read_speed(terminal: Terminal, device: Device) -> float | None:
    """What the device reads at most; None where it is not measured."""
    if device.kind != "cuda":
        return None
    from ninfer_runtime.bench.ceilings import KERNELS, measure_ceilings

    with Progress(terminal, "preparing", total=len(KERNELS)) as progress:
        device.prepare(KERNELS, progress.advance)
    return measure_ceilings(cast("CudaDevice", device)).read


def _subject(terminal: Terminal, device: Device, options: dict[str, Any]) -> Subject:
    if options["synthetic"] is not None:
        return _synthetic(terminal, device, options["synthetic"], options["recipe"])
    from ninfer_format import open_artifact
    from ninfer_runtime.cli.model_options import choose_model
    from ninfer_runtime.models.registry import load_model

    with open_artifact(choose_model(terminal, options["model"])) as artifact:
        model = load_model(artifact, device)
        return Subject(artifact.name or str(artifact.path), model, model.vocab_size)


def _corpus(path: Path | None, subject: Subject) -> np.ndarray | None:
    """The token ids of a file, int64; None for random ones."""
    if path is None:
        return None
    import numpy as np

    from ninfer_runtime.cli.token_ids import read_token_ids

    ids = read_token_ids(path, subject.public_tokens)
    if not ids:
        raise UsageError("has no token ids", path=path)
    return np.array(ids, np.int64)


def _synthetic(terminal: Terminal, device: Device, geometry: str, recipe: str | None) -> Subject:
    from ninfer_runtime.bench.synthetic import read_geometry, synthetic_model
    from ninfer_runtime.device.cuda import CudaDevice

    if recipe is None:
        raise UsageError("--synthetic needs --recipe")
    if not isinstance(device, CudaDevice):
        raise UsageError("--synthetic needs a GPU")
    model = synthetic_model(read_geometry(geometry), recipe, device)
    return Subject(f"{geometry}, random weights as {recipe}", model, model.vocab_size)


def _executor(
    terminal: Terminal, subject: Subject, tests: list[Test], options: dict[str, Any]
) -> Executor:
    from ninfer_runtime.engine.executor import Executor
    from ninfer_runtime.engine.executor_options import ExecutorOptions
    from ninfer_runtime.engine.loading import prepare, resolve_kv_format

    runs = options["warmup"] + options["repetitions"]
    needed = max(test.context(runs) for test in tests)
    if needed > subject.model.max_position_embeddings:
        raise UsageError(
            f"the tests need {needed} tokens, the model was made for"
            f" {subject.model.max_position_embeddings}"
        )
    executor_options = ExecutorOptions(
        kv_format=resolve_kv_format(options["kv_dtype"], subject.model.device),
        max_context=needed,
        public_tokens=subject.public_tokens,
        lanes=max(test.sequences for test in tests),
        prefill_chunk=options["prefill_chunk"],
        use_graphs=options["cuda_graph"],
    )
    _check_memory(subject.model, executor_options)
    executor = Executor(subject.model, executor_options, sorted({test.sequences for test in tests}))

    def show(description: str, total: int, /, *, in_bytes: bool = False) -> Progress:
        return Progress(terminal, description, total=total, unit="bytes" if in_bytes else "steps")

    prepare(executor, show)
    return executor


def _check_memory(model: LanguageModel, options: ExecutorOptions) -> None:
    """Refuse states that do not fit beside the weights, which are there already."""
    from ninfer_runtime.engine.memory_plan import check_memory
    from ninfer_runtime.models.architecture import ModelMemory

    states = model.state_bytes(**options.state_sizes)
    check_memory(ModelMemory(0, 0, states, 0), model.device, options.prefill_chunk)


def _profiles(executor: Executor, tests: list[Test]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where the time of a step of each kind goes."""
    from ninfer_runtime.bench.steps import profile_decode, profile_prefill

    for test in tests:
        if test.generated and not test.prompt:
            yield f"step of {test.name}", profile_decode(executor, test).to_json()
        elif not test.generated:
            yield f"chunk of {test.name}", profile_prefill(executor, test).to_json()
