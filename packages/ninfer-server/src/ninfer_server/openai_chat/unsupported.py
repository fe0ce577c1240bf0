"""Fields that ask for something which this server cannot do."""

from __future__ import annotations

from ninfer_server.compatibility import Compatibility
from ninfer_server.errors import ApiError, invalid_request
from ninfer_server.openai_chat.schema import ChatCompletionRequest

_CONSTRAINT_ALIASES = (
    "grammar",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def refuse_unsupported(chat: ChatCompletionRequest, compatibility: Compatibility) -> None:
    """Refuse what would be answered wrongly, and record what can be left out.

    Raises:
        ApiError: 400 naming the field and the code of the missing capability.
    """
    _refuse_sampling(chat)
    _refuse_constraints(chat)
    _refuse_legacy_tools(chat)
    _refuse_modalities(chat)
    _refuse_services(chat, compatibility)
    if chat.continue_final_message:
        raise _unsupported(
            "continue_final_message",
            "the last message cannot be continued",
            "assistant_prefill_not_supported",
        )


def _refuse_sampling(chat: ChatCompletionRequest) -> None:
    if chat.n not in (None, 1):
        raise _unsupported("n", "one answer a request is possible", "n_not_supported")
    if chat.repetition_penalty not in (None, 1):
        raise _unsupported(
            "repetition_penalty",
            "only 1 is possible; presence_penalty and frequency_penalty do similar things",
            "repetition_penalty_not_supported",
        )
    if any((chat.logit_bias or {}).values()):
        raise _unsupported("logit_bias", "only zeros are possible", "logit_bias_not_supported")
    for field in ("logprobs", "top_logprobs"):
        if getattr(chat, field):
            raise _unsupported(field, "probabilities are not given", "logprobs_not_supported")


def _refuse_constraints(chat: ChatCompletionRequest) -> None:
    code = "constrained_decoding_not_supported"
    if chat.response_format is not None and chat.response_format.get("type") != "text":
        kind = chat.response_format.get("type")
        if kind not in ("json_object", "json_schema"):
            raise _unsupported(
                "response_format",
                "type must be text, json_object or json_schema",
                "response_format_not_supported",
            )
        raise _unsupported("response_format", "the output cannot be forced into a form", code)
    if chat.structured_outputs is not None:
        raise _unsupported("structured_outputs", "the output cannot be forced into a form", code)
    for field in _CONSTRAINT_ALIASES:
        if getattr(chat, field) not in (None, ""):
            raise _unsupported(field, "use response_format or structured_outputs instead", code)


def _refuse_legacy_tools(chat: ChatCompletionRequest) -> None:
    if chat.functions:
        raise _unsupported("functions", "use tools instead", "legacy_tools_not_supported")
    if chat.function_call not in (None, "none", "auto"):
        raise _unsupported("function_call", "use tool_choice instead", "legacy_tools_not_supported")


def _refuse_modalities(chat: ChatCompletionRequest) -> None:
    if chat.modalities not in (None, ["text"]):
        raise _unsupported("modalities", "only text is possible", "modality_not_supported")
    options = chat.mm_processor_kwargs or {}
    if any(value is not None for value in options.values()):
        raise _unsupported(
            "mm_processor_kwargs", "nothing can be set", "mm_processor_kwargs_not_supported"
        )


def _refuse_services(chat: ChatCompletionRequest, compatibility: Compatibility) -> None:
    if chat.web_search_options is not None:
        raise _unsupported(
            "web_search_options", "there is no web search", "web_search_not_supported"
        )
    if chat.moderation is not None:
        raise _unsupported("moderation", "there is no moderation", "moderation_not_supported")
    if chat.verbosity in ("low", "high"):
        compatibility.ignore(
            "verbosity",
            otherwise=_unsupported(
                "verbosity", "only medium is possible", "verbosity_not_supported"
            ),
        )
    if chat.store:
        compatibility.ignore(
            "store",
            otherwise=_unsupported("store", "answers are not stored", "store_not_supported"),
        )


def _unsupported(field: str, reason: str, code: str) -> ApiError:
    return invalid_request(f"{field}: {reason}", param=field, code=code)
