"""Errors of the converter.

::

    NInferError
    ├── RecipeError        a recipe asks for something that cannot be done
    ├── ConversionError    a checkpoint's values or files cannot become an artifact
    │   └── NonFiniteInputError  a model that is calibrated computes NaN or infinity
    ├── VerificationError  what was written differs from its source by more than its format allows
    ├── DiskSpaceError     the output does not fit
    ├── DownloadError      a checkpoint cannot be loaded from the Hub
    ├── MissingTensorsError  a source lacks the weights of a parameter, or a scale of theirs
    └── MissingPackageError  a package that is needed is not installed
"""

from __future__ import annotations

from os import PathLike

from ninfer_format.errors import CheckpointError, ExitCode, NInferError


class RecipeError(NInferError, ValueError):
    """A recipe asks for something that cannot be done.

    Args:
        message: What is wrong, in one line.
        parameters: Names of the logical parameters concerned; they are put before the message.
        path: The recipe's file, if it is not a built-in one.
        hint: What to do about it.
    """

    code = "recipe"
    exit_code = ExitCode.INVALID_INPUT

    def __init__(
        self,
        message: str,
        *,
        parameters: tuple[str, ...] = (),
        path: str | PathLike[str] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{_listed(parameters)}{message}", path=path, hint=hint)
        self.parameters = parameters


def _listed(parameters: tuple[str, ...]) -> str:
    if not parameters:
        return ""
    more = f" (+{len(parameters) - 1})" if len(parameters) > 1 else ""
    return f"{parameters[0]}{more}: "


class ConversionError(NInferError, ValueError):
    """A checkpoint's values or files cannot become an artifact."""

    code = "conversion"
    exit_code = ExitCode.INVALID_INPUT


class NonFiniteInputError(ConversionError):
    """A model that is calibrated computes NaN or infinity."""


class VerificationError(NInferError):
    """What was written differs from its source by more than its format allows."""

    code = "verification"
    exit_code = ExitCode.FAILED


class DiskSpaceError(NInferError):
    """The output does not fit on its disk."""

    code = "disk_space"
    exit_code = ExitCode.CAPACITY


class DownloadError(NInferError):
    """A checkpoint cannot be loaded from the Hub."""

    code = "download"
    exit_code = ExitCode.FAILED


class MissingTensorsError(CheckpointError):
    """A source lacks the weights of a parameter, or a scale of theirs; `tensors` names them."""


class MissingPackageError(NInferError):
    """What was asked for needs a package that is not installed."""

    code = "missing_package"
    exit_code = ExitCode.UNAVAILABLE
