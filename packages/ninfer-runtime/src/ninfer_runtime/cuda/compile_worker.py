"""A process that compiles kernels one after the other, as its parent asks through pipes.

A process of its own kind rather than one of `multiprocessing`, which would import the parent's main
module again: a script that loads a model at its top would then load it in every such process.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.module_cache import ModuleCache
from ninfer_runtime.cuda.nvrtc import Cubin
from ninfer_runtime.errors import DeviceFailedError


class CompileWorker:
    """The parent's end of one such process.

    It inherits the signal mask of the thread that starts it.

    Args:
        cache_directory: Where it keeps what it has compiled.
    """

    def __init__(self, cache_directory: Path) -> None:
        self._directory = cache_directory
        # -P: what lies in the current folder must not stand in for the installed modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def compile(self, kernel: Kernel, architecture: str) -> Cubin:
        """Compile a kernel, or find it in the cache.

        Raises:
            KernelCompileError: Its source has an error.
            DeviceError: NVRTC or cuda-bindings is not installed.
            DeviceFailedError: The process was ended from outside.
        """
        process = self._process
        # Both are pipes, as asked for above.
        requests, answers = process.stdin, process.stdout
        try:
            if requests is None or answers is None:
                raise EOFError
            _send(requests, (kernel, architecture, self._directory))
            answer = pickle.load(answers)
        except (EOFError, OSError) as error:
            raise DeviceFailedError(
                f"a process that compiles kernels was ended, perhaps at {kernel}",
                hint="it may have run out of memory: free some, or allow fewer processors",
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        cubin: Cubin = answer
        return cubin

    def close(self) -> None:
        """End the process."""
        try:
            self._process.communicate()
        except BrokenPipeError:
            self._process.wait()


def serve() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What a library prints must not get among the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            kernel, architecture, directory = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: Cubin | Exception
        try:
            answer = ModuleCache(directory).load(kernel, architecture)
        except Exception as error:
            answer = error
        _send(answers, answer)


def _send(stream: BinaryIO | Any, message: object) -> None:
    pickle.dump(message, stream)
    stream.flush()


if __name__ == "__main__":
    serve()
