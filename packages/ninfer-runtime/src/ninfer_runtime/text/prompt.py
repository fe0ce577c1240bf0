"""From a caller's prompt to the tokens that the model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from ninfer_runtime.engine.request import PreparedPrompt, PromptInput, Role
from ninfer_runtime.errors import RequestError, RequestErrorKind
from ninfer_runtime.text.chat import (
    RESERVED_VARIABLES,
    chat_data,
    chat_variables,
    placements,
)
from ninfer_runtime.text.parsers.reasoning import CLOSE, OPEN
from ninfer_runtime.text.protection import DataProtection
from ninfer_runtime.text.template import ChatTemplate
from ninfer_runtime.text.tokenizer import Tokenizer


def _invalid(message: str, *, hint: str | None = None) -> RequestError:
    return RequestError(RequestErrorKind.INVALID_PROMPT, message, hint=hint)


class ReservedOptionError(RequestError):
    """A template option has the name of a variable that is not the caller's to set.

    Args:
        option: Its name.
    """

    def __init__(self, option: str) -> None:
        super().__init__(
            RequestErrorKind.INVALID_PROMPT,
            f"template option {option!r} is set by the engine",
            hint="leave it out",
        )
        self.option = option


class PromptRenderer:
    """Renders chats and takes raw prompts.

    Args:
        tokenizer: Makes the ids.
        template: Renders chats; None if there is none.
        special_tokens: Template variables that the tokenizer configuration defines, for example
            ``eos_token``.
        raw_prefix: Tokens before a raw prompt that is given as text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        special_tokens: Mapping[str, str],
        raw_prefix: tuple[int, ...] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._special_tokens = dict(special_tokens)
        self._raw_prefix = raw_prefix
        self._spellings = [token.content for token in tokenizer.added_tokens] + [OPEN, CLOSE]

    def render(self, prompt: PromptInput) -> PreparedPrompt:
        """Make the tokens of a prompt.

        Raises:
            RequestError: ``invalid_prompt``: it is empty, contradictory, has ids that are no
                tokens, or the template refuses it.
        """
        if prompt.raw_prompt is None:
            return self._render_chat(prompt)
        if prompt.messages:
            raise _invalid("a prompt is either messages or a raw prompt, found both")
        return self._take_raw(prompt.raw_prompt)

    def _take_raw(self, raw: str | tuple[int, ...]) -> PreparedPrompt:
        """Take a prompt as it is: one channel, no tools, spellings of control tokens count."""
        if not raw:
            raise _invalid("the prompt is empty")
        if isinstance(raw, str):
            ids = (*self._raw_prefix, *self._tokenizer.encode_with_controls(raw))
            return PreparedPrompt(ids, raw, starts_in_reasoning=False)
        for token_id in raw:
            if type(token_id) is not int or not 0 <= token_id < self._tokenizer.public_tokens:
                raise _invalid(
                    f"prompt token id {token_id!r} is outside 0..{self._tokenizer.public_tokens - 1}"
                )
        return PreparedPrompt(tuple(raw), "", starts_in_reasoning=False)

    def _render_chat(self, prompt: PromptInput) -> PreparedPrompt:
        self._check_chat(prompt)
        if self._template is None:
            raise _invalid(
                "the artifact has no chat template",
                hint="give a template, or a raw prompt instead of messages",
            )
        data = [chat_data(prompt), self._template.source]
        protection = DataProtection(self._spellings, data)
        rendered = self._render_text(self._template, prompt, protection)
        ids: list[int] = []
        for piece in self._tokenizer.split_controls(rendered):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(self._tokenizer.encode(protection.show(piece)))
        if not ids:
            raise _invalid("the chat template rendered an empty prompt")
        return PreparedPrompt(
            tuple(ids),
            protection.show(rendered),
            starts_in_reasoning=self._ends_in_reasoning(rendered),
            tools=prompt.tools,
        )

    def _check_chat(self, prompt: PromptInput) -> None:
        if not prompt.messages:
            raise _invalid("the prompt has no messages")
        for index, message in enumerate(prompt.messages):
            if message.role not in get_args(Role):
                allowed = ", ".join(get_args(Role))
                raise _invalid(f"message {index}: role {message.role!r} is not one of {allowed}")
        reserved = RESERVED_VARIABLES | self._special_tokens.keys()
        for name in prompt.template_options:
            if name in reserved:
                raise ReservedOptionError(name)

    def _render_text(
        self, template: ChatTemplate, prompt: PromptInput, protection: DataProtection
    ) -> str:
        """Render with the first placement of instructions that the template accepts."""
        first_refusal: RequestError | None = None
        for messages in placements(prompt.messages):
            variables = chat_variables(prompt, messages, protection)
            try:
                return template.render({**self._special_tokens, **variables})
            except RequestError as error:
                # The first refusal is about the chat that the caller knows.
                first_refusal = first_refusal or error
        raise first_refusal or _invalid("the prompt has no messages")

    def _ends_in_reasoning(self, rendered: str) -> bool:
        """Whether rendered text, data protected, ends inside an open think block."""
        special = [token.content for token in self._tokenizer.added_tokens if token.special]
        turn = max((rendered.rfind(spelling) for spelling in special), default=-1)
        opened = rendered.rfind(OPEN)
        return opened > turn and opened > rendered.rfind(CLOSE)
