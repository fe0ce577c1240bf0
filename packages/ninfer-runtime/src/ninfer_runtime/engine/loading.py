"""From an artifact on disk to the parts of an engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ninfer_runtime.engine.memory_plan import check_memory, choose_prefill_chunk
from ninfer_runtime.engine.model_info import ModelInfo, describe
from ninfer_runtime.engine.options import Backend, EngineOptions
from ninfer_runtime.engine.progress import Progress, ShowProgress, show_nothing
from ninfer_runtime.errors import DeviceError, DeviceFailedError, StartupError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ninfer_format import Artifact
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.engine.executor import Executor
    from ninfer_runtime.engine.model_program import ModelProgram
    from ninfer_runtime.kv.formats import KVFormat
    from ninfer_runtime.models.architecture import ModelMemory
    from ninfer_runtime.text.frontend import Frontend


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to be executed.

    Attributes:
        program: Executes its sequences.
        frontend: Its text side.
        info: Facts about it.
        options: The options it was loaded with, the backend decided.
    """

    program: ModelProgram
    frontend: Frontend
    info: ModelInfo
    options: EngineOptions


def load(options: EngineOptions, show: ShowProgress = show_nothing) -> LoadedModel:
    """Open the artifact of `options` and load its text model.

    Args:
        options: What to load, and how it will be executed.
        show: Is told what takes time.

    Raises:
        StartupError: The options do not fit the artifact or this host.
        CapacityError: The weights, or beside them one sequence, do not fit into memory.
        ArtifactError: The artifact is damaged.
        UnsupportedConfigError: The artifact's model is not implemented.
        UnsupportedOpError: The device has no kernel for something of the model.
        DeviceError: The backend is not available.
    """
    from ninfer_format import open_artifact
    from ninfer_runtime.engine.executor import Executor
    from ninfer_runtime.engine.executor_options import ExecutorOptions
    from ninfer_runtime.engine.model_program import ModelProgram
    from ninfer_runtime.models.registry import load_model, model_memory

    started = time.monotonic()
    with open_artifact(options.model) as artifact:
        device = open_device(options.backend, options.device)
        kv_format = resolve_kv_format(options.kv_dtype, device)
        # The text side first: it takes no time and may refuse the artifact or the template.
        frontend = _open_frontend(artifact, options)
        max_context = options.resolve_max_context(_positions(artifact))
        memory = model_memory(artifact, device, max_context, kv_format)
        prefill_chunk = choose_prefill_chunk(options, memory, device)
        check_memory(memory, device, prefill_chunk)
        with _show_weights(show, memory, device) as progress:
            model = load_model(artifact, device, progress.advance)
        executor_options = ExecutorOptions(
            kv_format=kv_format,
            max_context=max_context,
            public_tokens=frontend.tokenizer.public_tokens,
            prefill_chunk=prefill_chunk,
            use_graphs=options.use_cuda_graph,
        )
        executor = Executor(model, executor_options)
        prepare(executor, show)
        info = describe(
            artifact,
            public_tokens=frontend.tokenizer.public_tokens,
            load_s=time.monotonic() - started,
        )
        decided = replace(
            options,
            backend=cast(Backend, device.kind),
            kv_dtype=kv_format.name,
            prefill_chunk=prefill_chunk,
        )
        program = ModelProgram(executor, runs_ahead=device.kind != "cpu")
        return LoadedModel(program, frontend, info, decided)


def prepare(executor: Executor, show: ShowProgress = show_nothing) -> None:
    """Make an executor ready: everything compiled, its steps recorded.

    Raises:
        KernelCompileError: A kernel has an error.
    """
    needed = executor.device.needs(executor.works())
    if needed:
        with show("preparing kernels", len(needed)) as progress:
            executor.device.prepare(needed, progress.advance)
    executor.record()


def load_frontend(options: EngineOptions) -> Frontend:
    """Load the text side of the artifact of `options` only.

    Raises:
        StartupError: The artifact has no text component, or the options do not fit it.
        ArtifactError: The artifact is damaged.
    """
    from ninfer_format import open_artifact

    with open_artifact(options.model) as artifact:
        return _open_frontend(artifact, options)


def _open_frontend(artifact: Artifact, options: EngineOptions) -> Frontend:
    """Build the text side and check all that needs no weights."""
    from ninfer_runtime.text.frontend import Frontend

    _require_text(artifact)
    # Too long a context is refused before weights are read, which may take minutes.
    options.resolve_max_context(_positions(artifact))
    frontend = Frontend.from_artifact(artifact, options.chat_template)
    _check_vocabulary(artifact, frontend)
    return frontend


def _require_text(artifact: Artifact) -> None:
    """Refuse an artifact without a text component.

    Raises:
        StartupError: ``component_missing``.
    """
    if "text" not in artifact.directory.components:
        raise StartupError(
            "component_missing", "artifact has no component text", path=str(artifact.path)
        )


def _positions(artifact: Artifact) -> int:
    """Longest sequence in tokens that the model was made for."""
    positions = artifact.directory.components["text"].config.get("max_position_embeddings")
    # The architecture refuses a configuration without this number when the model is loaded.
    return positions if isinstance(positions, int) else 1


def _check_vocabulary(artifact: Artifact, frontend: Frontend) -> None:
    """Refuse a tokenizer with ids that the model has no rows for, before weights are read."""
    from ninfer_format import ArtifactError

    vocab_size = artifact.directory.components["text"].config.get("vocab_size")
    public_tokens = frontend.tokenizer.public_tokens
    if isinstance(vocab_size, int) and public_tokens > vocab_size:
        raise ArtifactError(
            "reference",
            "the tokenizer does not fit the model: number of tokens",
            expected=f"at most vocab_size {vocab_size}",
            found=public_tokens,
            path=artifact.path,
        )


def _show_weights(
    show: ShowProgress, memory: ModelMemory, device: Device
) -> AbstractContextManager[Progress]:
    """Show the loading of weights where it reports what it does."""
    if device.kind == "cpu":
        return show_nothing("", 0)
    return show("loading weights", memory.weight_bytes, in_bytes=True)


def resolve_kv_format(name: str | None, device: Device) -> KVFormat:
    """The storage of keys and values: the one that is named, else the device's default.

    Raises:
        StartupError: ``kv_dtype``: the device has none of this name.
    """
    from ninfer_runtime.kv.formats import kv_formats

    formats = kv_formats(device.kind)
    if name is None:
        return next(iter(formats.values()))
    if name not in formats:
        raise StartupError(
            "kv_dtype",
            f"kv_dtype {name!r} is not one of {', '.join(formats)}, which {device.kind} devices have",
        )
    return formats[name]


def open_device(backend: Backend, index: int) -> Device:
    """Open the device that executes a model; for ``auto`` a GPU if one is there.

    Raises:
        DeviceError: The backend is not available, or there is no device of this number.
    """
    from ninfer_runtime.device.registry import get_device

    if backend != "auto":
        return get_device(backend, index)
    try:
        return get_device("cuda", index)
    except DeviceFailedError:
        raise
    except DeviceError:
        return get_device("cpu", index)
