"""The smallest artifact, byte by byte from the container specification."""

from __future__ import annotations

from pathlib import Path

from ninfer_format import ArtifactWriter, Component, ResourceSpec, open_artifact, plan_artifact

ARTIFACT_ID = bytes(range(0x10, 0x20))
JSON = (
    b'{"components":{"text":{"config":{}}},'
    b'"objects":[{"id":"r","encoding":"raw_bytes_v1","offset":0,"bytes":1,"kind":"resource"}],'
    b'"bindings":{},"uses":[],"metadata":{},"provenance":{},'
    b'"files":[{"path":null,"payload_bytes":1}]}'
)
FILE = (
    bytes.fromhex("4e 49 4e 46 45 52 00 03")
    + bytes.fromhex("e0 0f 00 00 00 00 00 00")  # 4064
    + ARTIFACT_ID
    + JSON.ljust(4064, b" ")
    + b"\xa5"
)


def test_writer_writes_these_bytes(tmp_path: Path) -> None:
    plan = plan_artifact(
        [ResourceSpec("r", b"\xa5")], components={"text": Component({})}, bindings={}
    )
    with ArtifactWriter(tmp_path / "m.ninfer", plan, ARTIFACT_ID):
        pass
    assert (tmp_path / "m.ninfer").read_bytes() == FILE
    assert len(FILE) == 4097


def test_reader_reads_these_bytes(tmp_path: Path) -> None:
    (tmp_path / "m.ninfer").write_bytes(FILE)
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        assert artifact.artifact_id == ARTIFACT_ID
        assert artifact.read_object("r").tobytes() == b"\xa5"
        assert artifact.payload_bytes == 1
        assert artifact.file_bytes == 4097
        assert artifact.name is None
