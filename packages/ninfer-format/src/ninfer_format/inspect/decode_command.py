"""``ninfer-inspect decode``: one tensor as a file of NumPy's."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer_format.commandline import Terminal, common_options, refuse_inputs_as_outputs
from ninfer_format.inspect.intervals import INTERVAL, Interval
from ninfer_format.inspect.schema import SCHEMA


@click.command(
    "decode",
    short_help="Write one tensor into a .npy file.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  ninfer-inspect decode model.ninfer text/token_embedding --out embedding.npy
  ninfer-inspect decode model.ninfer weight/000024 --words --out words.npz
  ninfer-inspect decode model.gguf output.weight --rows 0:128 --out head.npy""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to be: .npy, or .npz where words are several arrays.",
)
@click.option("--words", is_flag=True, help="Write the stored words instead of the values.")
@click.option("--rows", type=INTERVAL, metavar="A:B", help="Only rows A up to B.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@common_options(SCHEMA)
def decode(
    terminal: Terminal,
    file: Path,
    name: str,
    out: Path,
    words: bool,
    rows: Interval | None,
    force: bool,
) -> None:
    """Write the values of tensor NAME of FILE as float32 or int32.

    NAME is a parameter or an object of an artifact, or a tensor of a Safetensors or GGUF file.
    The memory that this takes does not depend on the size of the tensor.
    """
    from ninfer_format.inspect.decode import DecodeRequest, write_tensor
    from ninfer_format.inspect.source import files_of, open_source

    file, out = file.expanduser(), out.expanduser()
    source = open_source(file)
    refuse_inputs_as_outputs([out], files_of(source))
    request = DecodeRequest(name, out, words, rows, force)
    write_tensor(terminal, click.format_filename(file), source, request)
