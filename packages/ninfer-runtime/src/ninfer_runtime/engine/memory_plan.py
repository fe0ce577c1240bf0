"""Whether a model fits with its states and with what executing it takes, and how large chunks may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_runtime.engine.options import PREFILL_CHUNK_MULTIPLE
from ninfer_runtime.errors import CapacityError

if TYPE_CHECKING:
    from ninfer_runtime.device.base import Device
    from ninfer_runtime.engine.options import EngineOptions
    from ninfer_runtime.models.architecture import ModelMemory

CPU_PREFILL_CHUNK = 1024

_GPU_BYTES = 2**29
"""Of a GPU for what does not grow: the ops' workspace, decoded weights, recorded steps."""

_GPU_BYTES_OF_A_TOKEN = 3 * 2**17
"""What a token of a chunk takes at most while a model with rows of 35,000 elements executes it."""


def choose_prefill_chunk(options: EngineOptions, memory: ModelMemory, device: Device) -> int:
    """Prompt tokens executed at a time: what was asked for, else the most that fits.

    Args:
        options: What was asked for, and where to begin on a GPU; there the number is halved until
            everything fits.
        memory: What the model takes.
        device: Where it is to lie.
    """
    if options.prefill_chunk is not None:
        return options.prefill_chunk
    if device.kind == "cpu":
        return CPU_PREFILL_CHUNK
    chunk, free = options.gpu_prefill_chunk, device.memory().free_bytes
    while chunk > PREFILL_CHUNK_MULTIPLE and _needed(memory, device, chunk, 1) > free:
        half = chunk // 2
        chunk = max(PREFILL_CHUNK_MULTIPLE, half - half % PREFILL_CHUNK_MULTIPLE)
    return chunk


def check_memory(
    memory: ModelMemory, device: Device, prefill_chunk: int, sequences: int = 1
) -> None:
    """Refuse a model that does not fit with its states (engine specification, 2.7).

    Args:
        memory: What it takes, for one sequence.
        device: Where it is to lie.
        prefill_chunk: Prompt tokens that will be executed at a time.
        sequences: States that there will be.

    Raises:
        CapacityError: As said.
    """
    needed = _needed(memory, device, prefill_chunk, sequences)
    free = device.memory().free_bytes
    if needed > free:
        raise CapacityError(
            f"needs {needed} bytes of {device.kind} memory, {free} are free "
            f"(weights {memory.weight_bytes}, keys and values {sequences * memory.cache_bytes}, "
            f"recurrent states {sequences * memory.recurrent_bytes}, "
            f"execution {execution_bytes(device, prefill_chunk)})",
            needed_bytes=needed,
            free_bytes=free,
            hint="free memory, reduce the context or use a smaller model",
        )


def _needed(memory: ModelMemory, device: Device, prefill_chunk: int, sequences: int) -> int:
    states = sequences * (memory.cache_bytes + memory.recurrent_bytes)
    execution = execution_bytes(device, prefill_chunk)
    return max(memory.loading_bytes, memory.weight_bytes + states + execution)


def execution_bytes(device: Device, prefill_chunk: int) -> int:
    """What is not planned in detail; on the CPU the system has it."""
    if device.kind == "cpu":
        return 0
    return _GPU_BYTES + prefill_chunk * _GPU_BYTES_OF_A_TOKEN
