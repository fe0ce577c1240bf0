"""The chat template: it has to compile in the runtime's sandbox."""

from __future__ import annotations

from ninfer_quant.errors import ConversionError
from ninfer_quant.resources.json_file import ResourceFile
from ninfer_runtime.errors import StartupError
from ninfer_runtime.text.template import ChatTemplate


def check_chat_template(file: ResourceFile) -> None:
    """Compile the template.

    Raises:
        ConversionError: It is not UTF-8, or has a syntax error.
    """
    try:
        ChatTemplate(file.data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConversionError(f"is not UTF-8: {error}", path=file.path) from error
    except StartupError as error:
        raise ConversionError(str(error), path=file.path) from error
