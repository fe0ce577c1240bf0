"""Where a model gets the values of its parameters from."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ninfer_format.errors import ArtifactError
from ninfer_runtime.models.architecture import LogicalParameter

if TYPE_CHECKING:
    from ninfer_format import Artifact


class ParameterSource(Protocol):
    """Values of parameters by their logical names."""

    def read(self, parameter: LogicalParameter) -> np.ndarray:
        """Values in float32, in the parameter's shape, C-contiguous; the caller may keep them."""
        ...

    def is_shared(self, name: str, other: str) -> bool:
        """Whether two parameters have their values in the same place."""
        ...


class ArtifactParameters:
    """The parameters that an artifact binds.

    Args:
        artifact: The open artifact.
        parameters: What the model needs.

    Raises:
        ArtifactError: Parameters or uses are not bound, or have another number of elements; one
            error names all of them.
    """

    def __init__(self, artifact: Artifact, parameters: Sequence[LogicalParameter]) -> None:
        self._artifact = artifact
        problems = [
            *_unbound(artifact, parameters),
            *_unused(artifact, parameters),
            *_missized(artifact, parameters),
        ]
        if problems:
            raise ArtifactError(
                "reference",
                "the artifact does not hold the model that its configuration describes: "
                + "; ".join(problems),
                path=artifact.path,
                hint="convert the checkpoint again",
            )

    def read(self, parameter: LogicalParameter) -> np.ndarray:
        """Decode a parameter; see `ParameterSource`."""
        values = self._artifact.decode_parameter(parameter.name, parameter.shape)
        if values.dtype != np.float32:
            raise ArtifactError(
                "reference",
                f"parameter {parameter.name!r} is bound to a tensor of another kind",
                path=self._artifact.path,
                expected="real numbers",
                found=values.dtype,
            )
        # A read-only array is a view of the file, which may be closed or go away.
        return values if values.flags.writeable else values.copy()

    def is_shared(self, name: str, other: str) -> bool:
        """Whether both are bound to the same elements."""
        bindings = self._artifact.directory.bindings
        return bindings[name] == bindings[other]


def _unbound(artifact: Artifact, parameters: Sequence[LogicalParameter]) -> list[str]:
    bindings = artifact.directory.bindings
    names = [parameter.name for parameter in parameters if parameter.name not in bindings]
    return [f"{len(names)} parameters are not bound: {', '.join(names)}"] if names else []


def _unused(artifact: Artifact, parameters: Sequence[LogicalParameter]) -> list[str]:
    """Every input of a projection needs a use, which says what precision it may have."""
    bindings = artifact.directory.bindings
    known = {(use.parameter, use.input) for use in artifact.directory.uses}
    names = [
        f"{parameter.name} with {name}"
        for parameter in parameters
        for name in parameter.inputs
        if parameter.name in bindings and (parameter.name, name) not in known
    ]
    return [f"{len(names)} uses are missing: {', '.join(names)}"] if names else []


def _missized(artifact: Artifact, parameters: Sequence[LogicalParameter]) -> list[str]:
    problems = []
    for parameter in parameters:
        if parameter.name not in artifact.directory.bindings:
            continue
        found = artifact.parameter_elements(parameter.name)
        if found != prod(parameter.shape):
            problems.append(
                f"{parameter.name} is bound to {found} elements "
                f"but has the shape {list(parameter.shape)}"
            )
    return problems
