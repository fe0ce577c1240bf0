"""A stored tensor as something that can be read in pieces of a bounded size."""

from __future__ import annotations

from dataclasses import replace

from ninfer_format.codecs import codec_of
from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import TensorRecord
from ninfer_format.container.stored_tensor import StoredTensor
from ninfer_format.layouts import CONTIGUOUS_LE_V1


def flat_tensor(artifact: Artifact, record: TensorRecord) -> StoredTensor:
    """The tensor of a record, cut as finely as its layout allows.

    Words of a direct format are one run, whatever their shape. They are seen as a vector here, so
    that a tensor whose rows are long, or that has none, can be cut as well.

    Raises:
        ArtifactError: `encoding`: the record cannot be interpreted.
    """
    codec = artifact.codec(record.id)
    if record.layout == CONTIGUOUS_LE_V1.name:
        record = replace(record, shape=(record.elements,))
        codec = codec_of(record)
    return StoredTensor(artifact.payload, record, codec)
