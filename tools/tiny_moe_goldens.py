"""Compute the goldens of the tiny mixture of experts with a public implementation.

    python tools/tiny_moe_goldens.py CHECKPOINT tests/data/tiny-moe/goldens.npz

CHECKPOINT is what tools/tiny_moe.py makes, in either layout. The stored goldens were computed in
float32 on a CPU with transformers 5.24.0 and torch 2.13.0, which are needed for this tool only:
install them into an environment of their own.
"""

from __future__ import annotations

import argparse
import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 512
LONG = 200
"""Tokens of the longest sequence: several chunks of the delta rule's chunked form, and a rest."""

SHORT = (1, 7, 33, 64)
NEW_TOKENS = 24


def sequences() -> dict[str, np.ndarray]:
    """Token ids by name; the same on every machine."""
    raw = np.random.PCG64(2026).random_raw(LONG + sum(SHORT)) % VOCABULARY
    parts = np.split(raw.astype(np.int64), np.cumsum((LONG, *SHORT))[:-1])
    return {f"tokens_{len(part)}": part for part in parts}


def main() -> None:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("goldens", type=Path)
    arguments = parser.parse_args()
    goldens = compute(arguments.checkpoint)
    arguments.goldens.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.goldens, **goldens)


def compute(checkpoint: Path) -> dict[str, Any]:
    """Ids, logits of every position but of the longest sequence only the last 32, greedy tokens."""
    # Not packages of this repository, whose type checker need not know them.
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    torch.set_num_threads(1)
    model = transformers.Qwen3_5MoeForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    goldens: dict[str, Any] = {}
    with torch.no_grad():
        for name, ids in sequences().items():
            logits = model(torch.tensor(ids[None])).logits[0].numpy()
            goldens[name] = ids.astype(np.int32)
            goldens[name.replace("tokens", "logits")] = logits[-32:] if len(ids) == LONG else logits
        prompt = torch.tensor(goldens["tokens_33"][None].astype(np.int64))
        generated = prompt
        for _ in range(NEW_TOKENS):
            best = model(generated).logits[0, -1].argmax()
            generated = torch.cat([generated, best.reshape(1, 1)], dim=1)
        goldens["greedy_33"] = generated[0, prompt.shape[1] :].numpy().astype(np.int32)
    values = (checkpoint / "model.safetensors").read_bytes()
    goldens["checkpoint_sha256"] = np.array(hashlib.sha256(values).hexdigest())
    return goldens


if __name__ == "__main__":
    main()
