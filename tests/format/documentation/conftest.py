"""Reading docs/format: sections, tables and what their cells say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest


class Cell(str):
    """The text of one cell of a table."""

    __slots__ = ()

    @property
    def names(self) -> list[str]:
        """What stands in back quotes."""
        return re.findall(r"`([^`]+)`", self)

    @property
    def name(self) -> str:
        """The only name."""
        (name,) = self.names
        return name

    @property
    def numbers(self) -> list[float]:
        return [float(text) for text in self._plain.split()]

    @property
    def integers(self) -> list[int]:
        """Decimal or 0x numbers, separated by spaces or commas."""
        return [int(text, 0) for text in self._plain.replace(",", " ").split()]

    @property
    def _plain(self) -> str:
        return self.replace("−", "-")


@dataclass(frozen=True)
class Pages:
    """The pages of docs/format, by name without ``.md``."""

    folder: Path

    @property
    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.md"))

    def text(self, page: str) -> str:
        return (self.folder / f"{page}.md").read_text("utf-8")

    def code(self, page: str, language: str) -> list[str]:
        """The code blocks of a language."""
        return re.findall(rf"```{language}\n(.*?)```", self.text(page), re.DOTALL)

    def section(self, page: str, heading: str) -> str:
        """The text below a heading, up to the next one of the same level or above."""
        text = self.text(page)
        match = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
        assert match, f"{page}.md has no section {heading!r}"
        rest = text[match.end() :]
        following = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
        return rest[: following.start()] if following else rest

    def table(self, page: str, heading: str, *columns: str) -> list[dict[str, Cell]]:
        """The rows of the first table in a section whose header has these columns."""
        for block in re.findall(r"(?:^\|.*\n)+", self.section(page, heading), re.MULTILINE):
            header, _, *rows = (
                [Cell(cell.strip()) for cell in line.strip().strip("|").split("|")]
                for line in block.splitlines()
            )
            if set(columns) <= set(header):
                return [dict(zip(header, row, strict=True)) for row in rows]
        raise AssertionError(f"section {heading!r} of {page}.md has no table with {columns}")


@pytest.fixture(scope="session")
def pages() -> Pages:
    return Pages(Path(__file__).parents[3] / "docs" / "format")
