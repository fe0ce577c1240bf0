"""Prefill and decode speed of a model on the CPU, one sequence.

    uv run --no-sync python benchmarks/cpu_decode.py [ARTIFACT] [--prompt 512] [--output 128]

Without an artifact the built-in tiny model is measured. The best of a few runs is printed: what
else runs on the machine only makes a run slower. OPENBLAS_NUM_THREADS and the like are honoured,
so unset them for a figure that is meant to be compared.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from ninfer_format import open_artifact
from ninfer_runtime import builtin_model
from ninfer_runtime.device import get_device
from ninfer_runtime.models.architecture import LanguageModel
from ninfer_runtime.models.registry import load_model


def main() -> None:
    arguments = parse_arguments()
    started = time.perf_counter()
    with open_artifact(arguments.artifact) as artifact:
        model = load_model(artifact, get_device("cpu"))
    load_s = time.perf_counter() - started
    runs = [measure(model, arguments) for _ in range(arguments.runs)]
    prefill_s, decode_s = (min(times) for times in zip(*runs, strict=True))
    print(f"artifact           {arguments.artifact}")
    print(f"weights            {model.weight_bytes / 2**20:.1f} MiB, loaded in {load_s:.2f} s")
    print(
        f"prefill            {arguments.prompt / prefill_s:.0f} tok/s ({arguments.prompt} tokens)"
    )
    print(f"decode             {arguments.output / decode_s:.0f} tok/s ({arguments.output} tokens)")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path, default=builtin_model.path())
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens to decode")
    parser.add_argument("--chunk", type=int, default=1024, help="prompt tokens at a time")
    parser.add_argument("--runs", type=int, default=5)
    return parser.parse_args()


def measure(model: LanguageModel, arguments: argparse.Namespace) -> tuple[float, float]:
    """Seconds of one prefill and of one decode."""
    prompt = np.random.default_rng(0).integers(0, model.vocab_size, arguments.prompt)
    state = model.new_state(arguments.prompt + arguments.output)
    started = time.perf_counter()
    for begin in range(0, len(prompt), arguments.chunk):
        hidden = model.forward(prompt[begin : begin + arguments.chunk], state)
    logits = model.logits(hidden[-1:])
    prefilled = time.perf_counter()
    for _ in range(arguments.output):
        logits = model.logits(model.forward(logits.argmax(axis=1), state))
    return prefilled - started, time.perf_counter() - prefilled


if __name__ == "__main__":
    main()
