"""Compiled kernels on disk.

An entry is one file: its checksum, a line of JSON, then the machine code. It appears under its name
complete, so that any number of processes may use one directory. What does not match its checksum
counts as absent and is compiled again.
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

SCHEMA = "ninfer-kernel/2"

_CHECKSUM_BYTES = hashlib.sha256().digest_size


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

        A directory that cannot be written costs the time to compile again, nothing else; `refusal`
        says so.

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

    def refusal(self) -> str | None:
        """Why nothing can be kept in the directory, None if it can."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                return None
        except OSError as error:
            return error.strerror or str(error)

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
    content = json.dumps(fields).encode() + b"\n" + data
    return hashlib.sha256(content).digest() + content


def _decode(content: bytes) -> Cubin | None:
    checksum, content = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if checksum != hashlib.sha256(content).digest():
        return None
    head, _, data = content.partition(b"\n")
    return Cubin(data=data, **json.loads(head))


def _publish(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):  # an interrupt may come when it has its name already
            os.unlink(name)
        raise
