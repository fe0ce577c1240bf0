"""Fuzzing of the reader with atheris.

uv run python -m tests.fuzz.reader SECONDS

No file may make the reader fail with anything but an artifact error or an error of the operating
system, keep it busy for ever, or make it allocate more than the length of the file and 64 MiB.
An input that does is kept in ``.fuzz/`` and given back to this program by its name to look at it.
"""

from __future__ import annotations

import sys
import tempfile
import tracemalloc
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["ninfer_format"]):
    from tests.fuzz.exercise import exercise

from tests.fuzz.bundle import load, pack, take_apart, unpack, write
from tests.fuzz.mutation import mutate

ROOT = Path(__file__).parents[2]
CONFORMANCE = ROOT / "tests" / "data" / "conformance"
FOUND = ROOT / ".fuzz"
EXTRA_BYTES = 64 * 2**20
MAX_INPUT_BYTES = 200_000
SECONDS_PER_INPUT = 20
RAW_SHARE = 0.1
"""Share of changes that are made without looking at the structure."""


class Target:
    """Runs the reader on one input after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, data: bytes) -> None:
        """Exercise the reader on a bundle."""
        entry = write(unpack(data), self._folder)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        exercise(entry)
        _, peak = tracemalloc.get_traced_memory()
        if peak - before > len(data) + EXTRA_BYTES:
            raise MemoryError(f"{peak - before} bytes for a file of {len(data)}")


def change(data: bytes, max_size: int, seed: int) -> bytes:
    """Change a bundle; atheris calls it for every new input."""
    random = Random(seed)
    sketch = take_apart(unpack(data))
    if sketch is None or random.random() < RAW_SHARE:
        return bytes(atheris.Mutate(data, max_size))
    try:
        changed = pack(mutate(sketch, random))
    except RecursionError:  # Copied into itself until it could be written no more.
        return data
    return changed if len(changed) <= max_size else data


def seeds() -> list[bytes]:
    """Bundles of all artifacts among the conformance data, sound ones and others."""
    return [load(path) for path in sorted(CONFORMANCE.rglob("*.ninfer"))]


def write_seeds(folder: Path) -> None:
    """Write the bundles that fuzzing starts from."""
    for index, data in enumerate(seeds()):
        (folder / f"{index}").write_bytes(data)


def main(arguments: list[str]) -> None:
    """Fuzz for some seconds, or run one input."""
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        corpus, folder = Path(work, "corpus"), Path(work, "files")
        corpus.mkdir()
        folder.mkdir()
        target = Target(folder)
        tracemalloc.start()
        (what,) = arguments
        if not what.isdecimal():
            target(Path(what).read_bytes())
            return
        write_seeds(corpus)
        options = [
            f"-max_total_time={what}",
            f"-max_len={MAX_INPUT_BYTES}",
            f"-timeout={SECONDS_PER_INPUT}",
            f"-artifact_prefix={FOUND}/",
            "-rss_limit_mb=2000",
        ]
        atheris.Setup([sys.argv[0], *options, str(corpus)], target, custom_mutator=change)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
