"""Finding one resource by what the user calls it."""

from __future__ import annotations

from ninfer_format.container.reader import Artifact
from ninfer_format.errors import ArtifactError, UsageError
from ninfer_format.nearest import did_you_mean


def find_resource(artifact: Artifact, name: str) -> tuple[str, str]:
    """Find a resource by its role, or by component and role.

    Args:
        artifact: The open artifact.
        name: ``ROLE`` or ``COMPONENT/ROLE``.

    Returns:
        The component and the role.

    Raises:
        ArtifactError: `reference`: there is none.
        UsageError: Several components have a resource in this role.
    """
    roles = [
        (component_id, role)
        for component_id, component in artifact.directory.components.items()
        for role in component.resources
    ]
    found = [pair for pair in roles if name in (pair[1], "/".join(pair))]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join("/".join(pair) for pair in found)
        raise UsageError(
            f"several components have a resource {name!r}: {names}", hint="give one of these names"
        )
    full_names = ["/".join(pair) for pair in roles]
    raise ArtifactError(
        "reference",
        "no such resource",
        expected=f"one of {', '.join(full_names) or 'none'}",
        found=name,
        path=artifact.path,
        hint=did_you_mean(name, [*(role for _, role in roles), *full_names]),
    )
