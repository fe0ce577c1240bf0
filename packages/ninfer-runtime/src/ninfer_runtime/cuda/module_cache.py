"""Compiled kernels on disk.

An entry is one file: a line of JSON, then the machine code. It appears under its name complete, so
that any number of processes may use one directory. What does not match its own checksum counts as
absent and is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ninfer_runtime.cuda.kernel import Kernel, headers_of
from ninfer_runtime.cuda.nvrtc import OPTIONS, Cubin, compile_source, nvrtc_version

SCHEMA = "ninfer-kernel/1"


class ModuleCache:
    """A directory of compiled kernels.

    Args:
        directory: Where the entries lie; it is made when the first one is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def get(self, kernel: Kernel, architecture: str) -> Cubin | None:
        """The machine code of a kernel, None if it is not there or damaged."""
        source = kernel.read()
        return self._read(self._path(kernel, source, headers_of(source), architecture))

    def load(self, kernel: Kernel, architecture: str) -> Cubin:
        """The machine code of a kernel, compiled and kept if it was not there.

        A directory that cannot be written costs the time to compile again, nothing else.

        Raises:
            KernelCompileError: The source has an error.
            DeviceError: NVRTC or cuda-bindings is not installed.
        """
        source = kernel.read()
        headers = headers_of(source)
        path = self._path(kernel, source, headers, architecture)
        cubin = self._read(path)
        if cubin is None:
            cubin = compile_source(kernel, source, headers, architecture)
            with suppress(OSError):
                _publish(path, _encode(cubin))
        return cubin

    def _path(
        self, kernel: Kernel, source: str, headers: dict[str, str], architecture: str
    ) -> Path:
        identity = [
            SCHEMA,
            kernel.source,
            source,
            headers,
            kernel.instance,
            OPTIONS,
            architecture,
            nvrtc_version(),
        ]
        key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        return self.directory / f"{key}.cubin"

    def _read(self, path: Path) -> Cubin | None:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        return _decode(content)


def _encode(cubin: Cubin) -> bytes:
    fields = asdict(cubin)
    data: bytes = fields.pop("data")
    fields["sha256"] = hashlib.sha256(data).hexdigest()
    return json.dumps(fields).encode() + b"\n" + data


def _decode(content: bytes) -> Cubin | None:
    head, _, data = content.partition(b"\n")
    try:
        fields = json.loads(head)
        if fields.pop("sha256") != hashlib.sha256(data).hexdigest():
            return None
        return Cubin(data=data, **fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
