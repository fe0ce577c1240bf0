"""Finding one resource by what the user calls it, and printing it."""

from __future__ import annotations

import click

from ninfer_format.commandline import Terminal
from ninfer_format.container.artifact import Artifact
from ninfer_format.errors import ArtifactError, UsageError
from ninfer_format.nearest import did_you_mean


def print_resource(terminal: Terminal, artifact: Artifact, name: str) -> None:
    """Print the bytes of a resource, or with ``--json`` its text.

    Raises:
        ArtifactError: `reference`: there is no such resource.
        UsageError: Several components have it, or it is not text and JSON was asked for.
    """
    component, role = find_resource(artifact, name)
    data = artifact.resource(component, role)
    if not terminal.json:
        click.echo(data, nl=False)
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(
            f"resource {component}/{role} is not text", hint="leave out --json to get its bytes"
        ) from None
    terminal.print_json({"component": component, "role": role, "text": text})


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
