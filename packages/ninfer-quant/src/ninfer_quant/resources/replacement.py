"""A file that is to take the place of a stored resource."""

from __future__ import annotations

from pathlib import Path

from ninfer_format.errors import UsageError
from ninfer_quant.errors import ConversionError
from ninfer_quant.resources.chat_template import check_chat_template
from ninfer_quant.resources.json_file import ResourceFile

CHAT_TEMPLATE_ROLE = "chat_template.jinja"


def read_replacement(role: str, path: Path) -> bytes:
    """Read a file and check what can be known from its role alone.

    Args:
        role: The role that it is for.
        path: The file.

    Returns:
        Its bytes, to be stored as they are.

    Raises:
        UsageError: There is no such file.
        ConversionError: It is empty, a chat template that does not compile, or, for a role that
            ends in ``.json``, no JSON object.
    """
    if not path.is_file():
        raise UsageError("no such resource file", path=path)
    file = ResourceFile(role, str(path), path.read_bytes())
    if not file.data:
        raise ConversionError("resource file is empty", path=path)
    if role == CHAT_TEMPLATE_ROLE:
        check_chat_template(file)
    elif role.endswith(".json"):
        file.parse()
    return file.data
