"""The numbers that describe an artifact; only the directory is looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ninfer_format.container.framing import CONTAINER_VERSION
from ninfer_format.container.reader import Artifact
from ninfer_format.container.schema import TensorRecord

_INTEGER_FORMATS = frozenset({"int32"})
"""Formats of tables such as token ids, whose elements are not parameters of a model."""


@dataclass(slots=True)
class Share:
    """What the tensors of one kind add up to.

    Attributes:
        tensors: Number of objects.
        elements: Logical elements together.
        num_bytes: Encoded bytes together.
    """

    tensors: int = 0
    elements: int = 0
    num_bytes: int = 0

    def add(self, record: TensorRecord) -> None:
        """Count one more tensor."""
        self.tensors += 1
        self.elements += record.elements
        self.num_bytes += record.num_bytes

    @property
    def bits_per_element(self) -> float:
        """Encoded bits for each logical element; 0 without tensors."""
        return 8 * self.num_bytes / self.elements if self.elements else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """An artifact in numbers.

    Attributes:
        tensors: All tensors together.
        weights: The tensors whose elements are parameters.
        formats: By numeric format, largest first.
        layouts: By storage layout, largest first.
        encodings: Number of resources by encoding.
    """

    tensors: Share
    weights: Share
    formats: Mapping[str, Share]
    layouts: Mapping[str, Share]
    encodings: Mapping[str, int]


def summarize(artifact: Artifact) -> Summary:
    """Add up what the directory lists."""
    records = artifact.directory.tensors
    weights = [record for record in records if record.format not in _INTEGER_FORMATS]
    encodings: dict[str, int] = defaultdict(int)
    for resource in artifact.directory.resources:
        encodings[resource.encoding] += 1
    return Summary(
        tensors=_total(records),
        weights=_total(weights),
        formats=_by(lambda record: record.format, records),
        layouts=_by(lambda record: record.layout, records),
        encodings=dict(encodings),
    )


def architecture(config: Mapping[str, Any]) -> str | None:
    """The architecture that a component's configuration names, if it names one."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) else None


def summary_document(path: str, artifact: Artifact) -> dict[str, Any]:
    """The summary as a JSON object.

    Args:
        path: The file as the user wrote it.
        artifact: The open artifact.
    """
    directory = artifact.directory
    summary = summarize(artifact)
    return {
        "path": path,
        "version": CONTAINER_VERSION,
        "artifact_id": artifact.artifact_id.hex(),
        "name": artifact.name,
        "architecture": architecture(directory.components["text"].config),
        "files": len(directory.files),
        "file_bytes": artifact.file_bytes,
        "payload_bytes": artifact.payload_bytes,
        "objects": len(directory.objects),
        "tensors": summary.tensors.tensors,
        "resources": len(directory.resources),
        "bindings": len(directory.bindings),
        "uses": len(directory.uses),
        "parameters": summary.weights.elements,
        "bits_per_weight": round(summary.weights.bits_per_element, 4),
        "formats": {name: _share(share, artifact) for name, share in summary.formats.items()},
        "layouts": {name: _share(share, artifact) for name, share in summary.layouts.items()},
        "encodings": dict(summary.encodings),
        "components": {
            name: {
                "architecture": architecture(component.config),
                "target": component.target,
                "resources": sorted(component.resources),
                "proposal": None if component.proposal is None else component.proposal.to_json(),
            }
            for name, component in directory.components.items()
        },
    }


def _share(share: Share, artifact: Artifact) -> dict[str, Any]:
    return {
        "tensors": share.tensors,
        "elements": share.elements,
        "bytes": share.num_bytes,
        "share": round(share.num_bytes / artifact.payload_bytes, 6),
    }


def _total(records: list[TensorRecord] | tuple[TensorRecord, ...]) -> Share:
    share = Share()
    for record in records:
        share.add(record)
    return share


def _by(key: Callable[[TensorRecord], str], records: tuple[TensorRecord, ...]) -> dict[str, Share]:
    shares: dict[str, Share] = defaultdict(Share)
    for record in records:
        shares[key(record)].add(record)
    return dict(sorted(shares.items(), key=lambda item: -item[1].num_bytes))
