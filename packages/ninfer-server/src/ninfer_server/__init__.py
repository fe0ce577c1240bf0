"""An HTTP server for one `.ninfer` model, with the interface of OpenAI's chat completions.

The names below are imported on first use: the command's help must not load the framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ninfer_server.app import create_app
    from ninfer_server.serve import serve
    from ninfer_server.settings import ServerSettings

_MODULES = {
    "app": ("create_app",),
    "serve": ("serve",),
    "settings": ("ServerSettings",),
}

__all__ = [
    "ServerSettings",
    "create_app",
    "serve",
]

__getattr__ = lazy_exports(__name__, _MODULES)
