"""``ninfer-inspect``: what is in an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ninfer_format.commandline import GroupedCommand, Terminal, common_options, run, version_option
from ninfer_format.errors import UsageError

if TYPE_CHECKING:
    from ninfer_format.container.reader import Artifact

SCHEMA = "ninfer-inspect/1"

EPILOG = """
\b
Examples:
  ninfer-inspect model.ninfer
  ninfer-inspect model.ninfer --objects
  ninfer-inspect model.ninfer --bindings --json > bindings.json
  ninfer-inspect model.ninfer --resource chat_template.jinja
"""


HEADINGS = {
    "Lists": ("objects", "bindings", "resources"),
    "Contents": ("config", "resource"),
}


@click.command(
    cls=GroupedCommand,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--objects", is_flag=True, help="List the stored objects.")
@click.option("--bindings", is_flag=True, help="List where parameters are stored and used.")
@click.option("--resources", is_flag=True, help="List the resources of the components.")
@click.option(
    "--config", is_flag=True, help="Print the configurations as JSON; not with other lists."
)
@click.option(
    "--resource",
    metavar="ROLE",
    help="Print one resource, by role or COMPONENT/ROLE; not with other lists.",
)
@version_option("ninfer-format")
@common_options(SCHEMA)
def command(
    terminal: Terminal,
    file: Path,
    objects: bool,
    bindings: bool,
    resources: bool,
    config: bool,
    resource: str | None,
) -> None:
    """Describe the artifact FILE.

    Header and directory are read and checked; stored values are not touched.
    """
    from ninfer_format.container.reader import open_artifact

    lists = {"objects": objects, "bindings": bindings, "resources": resources}
    if config + (resource is not None) + any(lists.values()) > 1:
        raise UsageError(
            "--config and --resource cannot be combined with each other, --objects, --bindings "
            "or --resources"
        )
    with open_artifact(file) as artifact:
        if resource is not None:
            _print_resource(terminal, artifact, resource)
        elif config:
            _print_config(terminal, artifact)
        elif terminal.json:
            _print_document(terminal, file, artifact, lists)
        else:
            _print_tables(terminal, file, artifact, lists)


def main() -> NoReturn:
    """Run the command and end the process."""
    run(command, SCHEMA)


def _print_resource(terminal: Terminal, artifact: Artifact, name: str) -> None:
    from ninfer_format.inspect.resources import find_resource

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


def _print_config(terminal: Terminal, artifact: Artifact) -> None:
    import json

    configs = {name: component.config for name, component in artifact.directory.components.items()}
    if terminal.json:
        terminal.print_json({"config": configs})
    else:
        click.echo(json.dumps(configs, ensure_ascii=False, indent=2))


def _print_document(
    terminal: Terminal, file: Path, artifact: Artifact, lists: dict[str, bool]
) -> None:
    from ninfer_format.inspect import records
    from ninfer_format.inspect.summary import summary_document

    document: dict[str, Any] = summary_document(click.format_filename(file), artifact)
    if lists["objects"]:
        document["object_records"] = records.object_records(artifact)
    if lists["bindings"]:
        document["binding_records"] = records.binding_records(artifact)
        document["use_records"] = records.use_records(artifact)
    if lists["resources"]:
        document["resource_records"] = records.resource_records(artifact)
    terminal.print_json(document)


def _print_tables(
    terminal: Terminal, file: Path, artifact: Artifact, lists: dict[str, bool]
) -> None:
    from ninfer_format.inspect import records, tables
    from ninfer_format.inspect.summary import summary_document

    document = summary_document(click.format_filename(file), artifact)
    for line in tables.overview_lines(document):
        click.echo(line)
    for title, member in (("format", "formats"), ("layout", "layouts")):
        if document[member]:
            terminal.out.print()
            terminal.out.print(tables.shares_table(title, document[member]))
    terminal.out.print()
    terminal.out.print(tables.components_table(document["components"]))
    listed = {
        "objects": records.object_lines,
        "bindings": records.binding_lines,
        "resources": records.resource_lines,
    }
    for name, lines in listed.items():
        if lists[name]:
            click.echo()
            for line in lines(artifact):
                click.echo(line)
