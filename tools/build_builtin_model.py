"""Make the model that ninfer-runtime ships, or check that the shipped one is up to date.

    python tools/build_builtin_model.py            # write it
    python tools/build_builtin_model.py --check    # compare bytes, exit 1 if they differ

The bytes depend on the checkpoint and on the code only, so that everyone gets the same files: the
artifact, and beside it a conversion report with hashes, which `ninfer-inspect --verify` compares.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ninfer_format.verification.conversion_report import report_path
from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.report import dump_report
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.recipes.loading import load_recipe
from ninfer_runtime import builtin_model

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "tests/data/tiny-model/checkpoint"
NAME = "tiny-qwen3_5"
OUTPUT = Path(builtin_model.__file__).parent / f"{NAME}.ninfer"
ARTIFACT_ID = NAME.encode().ljust(16, b"\0")
REPORTED = ("name", "artifact_id", "files", "payload_bytes", "directory_sha256", "object_sha256")
"""Members of the report that are shipped; the others tell of this machine and this run."""


def build(output: Path) -> None:
    """Convert the tiny checkpoint to `output` and its report, replacing what is there."""
    request = ConversionRequest(
        model=CHECKPOINT,
        recipe=load_recipe("qwen3_8_27b"),
        components=("text", "vision", "mtp"),
        name=NAME,
    )
    options = RunOptions(
        output, force=True, verify="full", artifact_id=ARTIFACT_ID, writes_report=False
    )
    report = run_conversion(plan_conversion(request), options, lambda num_bytes, item: None)
    report_path(output).write_bytes(dump_report({name: report[name] for name in REPORTED}))


def check() -> bool:
    """Whether the shipped files are what `build` makes."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / OUTPUT.name
        build(fresh)
        pairs = [(OUTPUT, fresh), (report_path(OUTPUT), report_path(fresh))]
        return all(
            shipped.is_file() and shipped.read_bytes() == made.read_bytes()
            for shipped, made in pairs
        )


def main() -> int:
    """Run the tool; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        if check():
            return 0
        print(
            f"error: {OUTPUT.name} is out of date; run this tool without --check", file=sys.stderr
        )
        return 1
    build(OUTPUT)
    print(f"wrote {OUTPUT.name}: {OUTPUT.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
