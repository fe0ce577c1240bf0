"""Sizes in bytes as people write and read them."""

import click
import pytest

from ninfer_format.commandline import SIZE, format_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("32000000000", 32_000_000_000), ("3KiB", 3072), ("2MiB", 2**21), ("1TiB", 2**40)],
)
def test_sizes_are_read(text, num_bytes):
    assert SIZE.convert(text, None, None) == num_bytes


@pytest.mark.parametrize("text", ["", "1k", "1.5GiB", "-1", "1 GiB", "GiB", "1GB"])
def test_other_spellings_are_refused(text):
    with pytest.raises(click.BadParameter, match="not a size"):
        SIZE.convert(text, None, None)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.50 KiB"), (20 * 2**30, "20.0 GiB")],
)
def test_sizes_are_written(num_bytes, text):
    assert format_bytes(num_bytes) == text
