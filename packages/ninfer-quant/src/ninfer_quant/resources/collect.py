"""Finding the resource files of the selected components and making them ready to store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_format.errors import UsageError
from ninfer_format.nearest import did_you_mean
from ninfer_quant.errors import ConversionError
from ninfer_quant.resources.chat_template import check_chat_template
from ninfer_quant.resources.generation import check_generation_config
from ninfer_quant.resources.json_file import Change, ResourceFile
from ninfer_quant.resources.tokenizer import (
    count_public_tokens,
    normalise_tokenizer,
    normalise_tokenizer_config,
    special_token_ids,
)
from ninfer_quant.resources.vision import normalise_preprocessor
from ninfer_runtime.models.architecture import Architecture

TEXT_ROLES = frozenset(
    ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
)
"""Files without which nothing can be said about tokens."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of an artifact.

    Attributes:
        data: Bytes to store by component and role, in the order they are written.
        changes: What differs from the files.
        public_tokens: Number of token ids that have a meaning.
        special_tokens: Ids of the special ones, ascending.
    """

    data: Mapping[str, Mapping[str, bytes]]
    changes: tuple[Change, ...]
    public_tokens: int
    special_tokens: tuple[int, ...] = ()


def locate_resources(
    folder: Path,
    architecture: Architecture,
    components: tuple[str, ...],
    overrides: Mapping[str, Path],
    *,
    may_lack: bool = False,
) -> dict[str, dict[str, Path]]:
    """Say which file fills which role.

    Args:
        folder: The checkpoint's folder.
        architecture: Knows the roles.
        components: Selected components.
        overrides: Files that replace those of the folder, by role.
        may_lack: Leave out missing files, which is good for a plan.

    Returns:
        Paths by component and role.

    Raises:
        UsageError: An override names no role of a selected component, or no file.
        ConversionError: Files are missing; all of them are named.
    """
    roles = {component: architecture.resource_roles(component) for component in components}
    known = [role for names in roles.values() for role in names]
    for role, path in overrides.items():
        if role not in known:
            raise UsageError(
                f"resource {role!r} is no role of the selected components",
                hint=did_you_mean(role, known) or f"roles are {', '.join(known)}",
            )
        if not path.is_file():
            raise UsageError("no such resource file", path=path)
    located = {
        component: {role: overrides.get(role, folder / role) for role in names}
        for component, names in roles.items()
    }
    missing = [
        role for files in located.values() for role, path in files.items() if not path.is_file()
    ]
    if may_lack:
        return {
            component: {role: path for role, path in files.items() if path.is_file()}
            for component, files in located.items()
        }
    if missing:
        raise ConversionError(
            f"resource files are missing: {', '.join(missing)}",
            path=folder,
            hint="give them with --resource ROLE=PATH",
        )
    return located


def read_resources(
    located: Mapping[str, Mapping[str, Path]], configs: Mapping[str, Mapping[str, Any]]
) -> Resources:
    """Read, check and normalise the located files.

    Args:
        located: Paths by component and role.
        configs: Component configurations of the artifact.

    Raises:
        ConversionError: A file is not what the runtime can use.
    """
    files = {
        component: {
            role: ResourceFile(role, str(path), path.read_bytes()) for role, path in paths.items()
        }
        for component, paths in located.items()
    }
    empty = [file.path for named in files.values() for file in named.values() if not file.data]
    if empty:
        raise ConversionError(f"resource files are empty: {', '.join(empty)}")
    if TEXT_ROLES - files["text"].keys():
        return _incomplete(files, configs["text"])
    text, changes, public_tokens = _read_text(files["text"], configs["text"])
    data: dict[str, dict[str, bytes]] = {"text": text}
    for component, named in files.items():
        if component == "text" or not named:
            continue
        data[component] = {}
        for role, file in named.items():
            data[component][role], changed = normalise_preprocessor(file, configs[component])
            changes += changed
    special = special_token_ids(text["tokenizer.json"], text["tokenizer_config.json"])
    return Resources(data, tuple(changes), public_tokens, special)


def _incomplete(
    files: Mapping[str, Mapping[str, ResourceFile]], config: Mapping[str, Any]
) -> Resources:
    """What a plan can say without a tokenizer: every row of the embedding may be a token."""
    lacking = sorted(TEXT_ROLES - files["text"].keys())
    change = Change(f"resource files are missing: {', '.join(lacking)}", is_expected=False)
    data = {
        component: {role: file.data for role, file in named.items()}
        for component, named in files.items()
        if named
    }
    return Resources(data, (change,), config["vocab_size"])


def _read_text(
    files: Mapping[str, ResourceFile], config: Mapping[str, Any]
) -> tuple[dict[str, bytes], list[Change], int]:
    data = {role: file.data for role, file in files.items()}
    check_chat_template(files["chat_template.jinja"])
    data["tokenizer.json"], changes = normalise_tokenizer(files["tokenizer.json"])
    data["tokenizer_config.json"], changed = normalise_tokenizer_config(
        files["tokenizer_config.json"], files["tokenizer.json"].parse()
    )
    public_tokens = count_public_tokens(
        data["tokenizer.json"], data["tokenizer_config.json"], config["vocab_size"]
    )
    check_generation_config(files["generation_config.json"], public_tokens)
    return data, changes + changed, public_tokens
