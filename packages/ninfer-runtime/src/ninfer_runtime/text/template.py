"""Chat templates: Jinja in a sandbox, with the conventions of Hugging Face checkpoints.

A template comes with a checkpoint, so it is foreign code. The sandbox keeps it from changing its
arguments and from reaching Python's internals. Beyond that are bounded: the length of the output,
`range`, the length of what ``+`` and ``*`` make of sequences, and the size of powers. A template
that loops for long without writing anything is not stopped, nor is one that fills the memory by
formatting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer_runtime.errors import RequestError, RequestErrorKind, StartupError
from ninfer_runtime.text.json_values import write_json
from ninfer_runtime.text.protection import MARKS

_NON_ASCII = re.compile(f"[^\x00-\x7f{MARKS}]")
"""What a template may ask to have escaped; marks stand for ASCII characters."""

MAX_CHARACTERS = 1 << 25
"""Longest text that a template may write."""

MAX_SEQUENCE = MAX_CHARACTERS
"""Longest string or list that ``+`` or ``*`` may make in a template."""

_SEQUENCES = (str, list, tuple)

MAX_POWER_BITS = 1 << 12
"""Size of the largest number that ``**`` may make in a template."""


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of Jinja's own filter, spaced as Python spaces it."""
    text = write_json(
        value,
        separators=separators or (", " if indent is None else ",", ": "),
        indent=indent,
        sort_keys=sort_keys,
    )
    return _NON_ASCII.sub(_escape, text) if ensure_ascii else text


def _escape(character: re.Match[str]) -> str:
    return json.dumps(character.group())[1:-1]


def _check_length(length: int) -> None:
    if length > MAX_SEQUENCE:
        raise SecurityError(f"a string or list exceeds {MAX_SEQUENCE} items")


def _check_product(sequence: Any, count: Any) -> None:
    if isinstance(sequence, _SEQUENCES) and isinstance(count, int):
        _check_length(len(sequence) * count)


def _check_power(base: int, exponent: int) -> None:
    if base.bit_length() * exponent > MAX_POWER_BITS:
        raise SecurityError(f"a power exceeds {MAX_POWER_BITS} bits")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with bounds on operators that make large values from small ones."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator unless its result would be too large."""
        if operator == "*":
            _check_product(left, right)
            _check_product(right, left)
        elif isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES):
            _check_length(len(left) + len(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_power(left, right)
        return super().call_binop(context, operator, left, right)


def _make_environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: The Jinja source.
        path: Where it comes from, for messages.

    Raises:
        StartupError: ``chat_template``: the source has a syntax error; the message has the line.
    """

    def __init__(self, source: str, *, path: str | None = None) -> None:
        self.source = source
        try:
            self._template = _make_environment().from_string(source)
        except TemplateSyntaxError as error:
            raise StartupError(
                "chat_template",
                f"line {error.lineno} of the chat template: {error.message}",
                path=path,
            ) from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return what the template writes.

        Args:
            variables: What the template can read.

        Raises:
            RequestError: ``invalid_prompt``: the template failed or refused the conversation (the
                message is the template's own), or it wrote more than `MAX_CHARACTERS`.
        """
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(variables):
                length += len(piece)
                if length > MAX_CHARACTERS:
                    raise TemplateError(f"the text exceeds {MAX_CHARACTERS} characters")
                pieces.append(piece)
        except Exception as error:  # A template can raise whatever an expression can raise.
            raise RequestError(
                RequestErrorKind.INVALID_PROMPT,
                f"the chat template cannot render the conversation: {error}",
            ) from error
        return "".join(pieces)
