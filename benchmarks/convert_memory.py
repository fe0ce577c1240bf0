"""Speed and peak memory of ninfer-convert on a synthetic checkpoint of some gigabytes.

    python benchmarks/convert_memory.py [--layers 4] [--jobs 1,2] [--recipe qwen3_8_27b] [--folder DIR]

The weights have the widths of the 27B models and random values, in shards of at most 4 GB; 24 layers
are 19 GB. Tokenizer files are those of the tiny test model. Each conversion runs in a process of its
own, whose peak resident memory is measured. The checkpoint is made in a temporary folder and removed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, get_args

import ml_dtypes
import numpy as np

from ninfer_quant.pipeline.conversion import ConversionRequest, plan_conversion
from ninfer_quant.pipeline.run import RunOptions, run_conversion
from ninfer_quant.pipeline.verify import VerifyMode
from ninfer_quant.recipes.loading import load_recipe
from ninfer_runtime.models.registry import find_architecture

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "tests/data/tiny-model/checkpoint"
BLOCK_ELEMENTS = 1 << 22
SHARD_BYTES = 4_000_000_000

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 5120,
    "vocab_size": 40960,
    "max_position_embeddings": 262144,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rope_parameters": {"rope_theta": 1e7, "mrope_section": [11, 11, 10]},
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 17408,
}


def make_checkpoint(folder: Path, layers: int) -> int:
    """Write a checkpoint of random bf16 weights; returns the size of the weights in bytes."""
    config = CONFIG | {"num_hidden_layers": layers}
    for path in TINY.iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    architecture = find_architecture("Qwen3_5ForCausalLM")
    configs = architecture.component_configs(config, ("text",))
    views = architecture.source_views(configs, ("model.embed_tokens.weight",)).values()
    shapes = {view.tensor: view.tensor_shape for view in views}
    generator = np.random.default_rng(0)
    values = generator.standard_normal(BLOCK_ELEMENTS, np.float32) * np.float32(0.02)
    block = values.astype(ml_dtypes.bfloat16).tobytes()
    weight_map: dict[str, str] = {}
    source_bytes = 0
    for number, shard in enumerate(split_shards(shapes)):
        name = f"model-{number:05d}.safetensors"
        source_bytes += write_shard(folder / name, shard, block)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return source_bytes


def split_shards(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """Put tensors into shards in their order, none larger than it has to be."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    left = SHARD_BYTES
    for name, shape in shapes.items():
        left -= 2 * prod(shape)
        if left < 0 and shards[-1]:
            shards.append({})
            left = SHARD_BYTES - 2 * prod(shape)
        shards[-1][name] = shape
    return shards


def write_shard(path: Path, shapes: Mapping[str, tuple[int, ...]], block: bytes) -> int:
    """Write one Safetensors file, its values a block that repeats; returns the bytes of the values."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(block)):
            file.write(block[: end - begin])
    return end


def convert(
    checkpoint: Path, output: Path, recipe: str, jobs: int, verify: VerifyMode
) -> dict[str, Any]:
    """Convert in this process and measure it."""
    before = peak_bytes()
    started, worked = time.perf_counter(), time.process_time()
    request = ConversionRequest(model=checkpoint, recipe=load_recipe(recipe))
    options = RunOptions(output, jobs=jobs, verify=verify, force=True)
    run_conversion(plan_conversion(request), options, lambda num_bytes, item: None)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - worked,
        "peak_bytes": peak_bytes(),
        "peak_bytes_before": before,
    }


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    """Run the benchmark; prints one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--jobs", default="1,2")
    parser.add_argument("--recipe", default="qwen3_8_27b")
    parser.add_argument("--verify", default="sample", choices=get_args(VerifyMode))
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        checkpoint = Path(folder) / "checkpoint"
        checkpoint.mkdir()
        source_bytes = make_checkpoint(checkpoint, options.layers)
        runs = []
        for jobs in map(int, options.jobs.split(",")):
            arguments = (
                checkpoint,
                Path(folder) / "out.ninfer",
                options.recipe,
                jobs,
                options.verify,
            )
            # A fresh interpreter: nothing of this process counts as memory of the conversion.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                run = pool.apply(convert, arguments)
            speed = source_bytes / run["seconds"] / 1e6
            # What one processor does; of a busy machine this says more than the time on the wall.
            per_core = source_bytes / run["cpu_seconds"] / 1e6
            speeds = {"source_mb_per_s": round(speed, 1), "mb_per_cpu_s": round(per_core, 1)}
            runs.append({"jobs": jobs, **speeds, **run})
    document = {"source_bytes": source_bytes, "recipe": options.recipe, "runs": runs}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
