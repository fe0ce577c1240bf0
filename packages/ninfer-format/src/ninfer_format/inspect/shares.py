"""What the tensors of one kind add up to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Share:
    """Tensors added up.

    Attributes:
        tensors: Number of tensors.
        elements: Logical elements together.
        num_bytes: Encoded bytes together.
    """

    tensors: int = 0
    elements: int = 0
    num_bytes: int = 0

    def add(self, elements: int, num_bytes: int) -> None:
        """Count one more tensor."""
        self.tensors += 1
        self.elements += elements
        self.num_bytes += num_bytes

    @property
    def bits_per_element(self) -> float:
        """Encoded bits for each logical element; 0 without elements."""
        return 8 * self.num_bytes / self.elements if self.elements else 0.0

    def to_json(self, whole_bytes: int) -> dict[str, Any]:
        """The share as a JSON object.

        Args:
            whole_bytes: What it is a share of.
        """
        return {
            "tensors": self.tensors,
            "elements": self.elements,
            "bytes": self.num_bytes,
            "share": round(self.num_bytes / whole_bytes, 6) if whole_bytes else 0.0,
        }


def add_up(tensors: Iterable[tuple[str, int, int]]) -> dict[str, Share]:
    """Add up tensors by kind, largest kind first.

    Args:
        tensors: Kind, elements and encoded bytes of each.
    """
    shares: dict[str, Share] = defaultdict(Share)
    for kind, elements, num_bytes in tensors:
        shares[kind].add(elements, num_bytes)
    return dict(sorted(shares.items(), key=lambda item: -item[1].num_bytes))


def total(shares: Iterable[Share]) -> Share:
    """All shares together."""
    whole = Share()
    for share in shares:
        whole.tensors += share.tensors
        whole.elements += share.elements
        whole.num_bytes += share.num_bytes
    return whole
