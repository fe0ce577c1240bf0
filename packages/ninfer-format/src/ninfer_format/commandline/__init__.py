"""The conventions that every command of the project shares.

What a command prints where, how it ends and how it shows progress is decided here once:
the product goes to stdout, everything else to stderr; ``--json`` prints one document; an error
is one line and an exit code. Each command is a click command decorated with `common_options`
and ended by `run`.
"""

from ninfer_format.commandline.files import new_output, refuse_existing, refuse_inputs_as_outputs
from ninfer_format.commandline.grouped_command import GroupedCommand
from ninfer_format.commandline.options import common_options, refuse_given, version_option
from ninfer_format.commandline.progress import Progress
from ninfer_format.commandline.run import run
from ninfer_format.commandline.sizes import SIZE, format_bytes
from ninfer_format.commandline.terminal import Terminal

__all__ = [
    "SIZE",
    "GroupedCommand",
    "Progress",
    "Terminal",
    "common_options",
    "format_bytes",
    "new_output",
    "refuse_existing",
    "refuse_given",
    "refuse_inputs_as_outputs",
    "run",
    "version_option",
]
