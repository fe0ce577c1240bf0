"""``ninfer-convert sources``: the tensors of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer_format.commandline import Terminal, common_options, format_bytes
from ninfer_quant.cli.schema import SCHEMA


@click.command(
    short_help="List the tensors of a checkpoint.",
    epilog="""\b
Examples:
  ninfer-convert sources Qwen3.8-27B
  ninfer-convert sources model.safetensors --json > tensors.json
  ninfer-convert sources model.gguf""",
)
@click.argument("file", type=click.Path(path_type=Path))
@common_options(SCHEMA)
def sources(terminal: Terminal, file: Path) -> None:
    """List the tensors of FILE: a Safetensors file, index or folder, or a GGUF file."""
    from ninfer_format.checkpoint.open_checkpoint import open_checkpoint

    checkpoint = open_checkpoint(file.expanduser())
    tensors = [checkpoint.info(name) for name in checkpoint.names]
    if terminal.json:
        entries = [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "bytes": tensor.num_bytes,
                "file": tensor.file.name,
            }
            for tensor in tensors
        ]
        terminal.print_json({"tensors": entries, "total_bytes": checkpoint.total_bytes})
        return
    width = max((len(tensor.name) for tensor in tensors), default=0)
    for tensor in tensors:
        shape = "×".join(map(str, tensor.shape)) or "scalar"
        click.echo(f"{tensor.name:<{width}}  {tensor.dtype:<8}  {shape:<20}  {tensor.num_bytes}")
    click.echo(f"{len(tensors)} tensors, {format_bytes(checkpoint.total_bytes)}")
