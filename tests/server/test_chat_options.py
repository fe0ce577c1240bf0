"""Sampling, limits, thinking, and fields that ask for what this server cannot do."""

import pytest

from ninfer_runtime.sampling.params import SamplingOverrides
from ninfer_server.errors import ApiError
from ninfer_server.openai_chat.translate import translate
from ninfer_server.settings import ServerSettings


def translated(settings=None, **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return translate(body, "m", settings or ServerSettings())


def refused(settings=None, **fields):
    with pytest.raises(ApiError) as caught:
        translated(settings, **fields)
    assert caught.value.status == 400
    return caught.value.wire_code, caught.value.param


def ignored(**fields):
    return translated(**fields).headers.get("x-ninfer-ignored")


STRICT = ServerSettings(compatibility="strict")


def test_defaults_leave_everything_to_the_model():
    call = translated()
    assert call.options.sampling == SamplingOverrides()
    assert call.options.max_output_tokens == 8192
    assert call.options.stop_strings == ()
    assert call.prompt.enable_thinking is None
    assert call.prompt.template_options == {}
    assert not call.stream
    assert call.headers == {}


def test_request_goes_before_the_server_and_greedy_before_both():
    defaults = SamplingOverrides(temperature=0.3, top_p=0.5, greedy=True)
    sampling = translated(ServerSettings(sampling=defaults), temperature=1, min_p=0.1)
    assert sampling.options.sampling == SamplingOverrides(
        temperature=1.0, top_p=0.5, min_p=0.1, greedy=True
    )


def test_zero_is_a_value():
    defaults = SamplingOverrides(temperature=0.3, presence_penalty=1.0)
    options = translated(
        ServerSettings(sampling=defaults), temperature=0, presence_penalty=0, max_tokens=0
    ).options
    assert options.sampling.temperature == 0
    assert options.sampling.presence_penalty == 0
    assert options.max_output_tokens == 0


@pytest.mark.parametrize(("given", "used"), [(-1, 0), (0, 0), (5, 5), (20, 20)])
def test_top_k(given, used):
    assert translated(top_k=given).options.sampling.top_k == used


def test_top_k_beyond_the_cap_is_clamped_or_refused():
    call = translated(top_k=40)
    assert call.options.sampling.top_k == 20
    assert call.headers == {"x-ninfer-ignored": "top_k"}
    assert refused(STRICT, top_k=21) == (None, "top_k")


@pytest.mark.parametrize(
    ("given", "used"), [(0, 0), (5, 5), (-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)]
)
def test_seed_is_taken_as_u64(given, used):
    assert translated(ServerSettings(seed=9), seed=given).options.seed == used


def test_seed_of_the_server_then_a_random_one():
    assert translated(ServerSettings(seed=9)).options.seed == 9
    assert len({translated().options.seed for _ in range(5)}) == 5


def test_first_limit_wins():
    settings = ServerSettings(default_max_tokens=7)
    assert translated(settings).options.max_output_tokens == 7
    assert translated(settings, max_tokens=5).options.max_output_tokens == 5
    both = translated(settings, max_completion_tokens=3, max_tokens=5)
    assert both.options.max_output_tokens == 3
    null = translated(settings, max_completion_tokens=None, max_tokens=5)
    assert null.options.max_output_tokens == 5


@pytest.mark.parametrize(("stop", "used"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stop_strings_end_thoughts_and_answer(stop, used):
    options = translated(stop=stop).options
    assert options.stop_strings == used
    assert options.reasoning_stop_strings == used


def test_effort_none_turns_thinking_off_and_others_on():
    prompt = translated(reasoning_effort="none").prompt
    assert (prompt.enable_thinking, prompt.reasoning_effort) == (False, None)
    prompt = translated(ServerSettings(enable_thinking=False), reasoning_effort="low").prompt
    assert (prompt.enable_thinking, prompt.reasoning_effort) == (True, "low")


@pytest.mark.parametrize("place", ["field", "option"])
def test_thinking_can_be_set_in_two_places(place):
    fields = {"enable_thinking": False, "preserve_thinking": True}
    call = translated(**fields if place == "field" else {"chat_template_kwargs": fields})
    assert call.prompt.enable_thinking is False
    assert call.prompt.preserve_thinking is True
    assert call.prompt.template_options == {}


def test_server_decides_where_the_request_does_not():
    settings = ServerSettings(enable_thinking=False, preserve_thinking=True)
    prompt = translated(settings).prompt
    assert (prompt.enable_thinking, prompt.preserve_thinking) == (False, True)
    prompt = translated(settings, enable_thinking=True, preserve_thinking=False).prompt
    assert (prompt.enable_thinking, prompt.preserve_thinking) == (True, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
        {"preserve_thinking": True, "chat_template_kwargs": {"preserve_thinking": False}},
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        {"enable_thinking": True, "reasoning_effort": "none"},
        {"enable_thinking": False, "reasoning_effort": "low"},
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
    ],
)
def test_contradictions_about_thinking_are_refused(fields):
    assert refused(**fields)[0] == "conflicting_template_option"


def test_other_template_options_keep_their_order_and_their_nulls():
    options = {"z": None, "enable_thinking": None, "a": [1]}
    assert list(translated(chat_template_kwargs=options).prompt.template_options.items()) == [
        ("z", None),
        ("a", [1]),
    ]


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "add_generation_prompt", "continue_final_message", "eos_token"],
)
@pytest.mark.parametrize("stream", [True, False])
def test_variables_of_the_server_cannot_be_replaced(client, body, name, stream):
    answer = client.post(
        "/v1/chat/completions", json=body(stream=stream, chat_template_kwargs={name: 1})
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "chat_template_option_not_supported"
    assert error["param"] == f"chat_template_kwargs.{name}"


def test_names_of_tokens_that_the_model_has_not_are_the_templates(client, body):
    options = {"chat_template_kwargs": {"mask_token": "x"}}
    assert client.post("/v1/chat/completions", json=body(**options)).status_code == 200


@pytest.mark.parametrize(
    "options", [{"enable_thinking": 1}, {"preserve_thinking": "no"}, {"reasoning_effort": "hard"}]
)
def test_template_options_are_typed(options):
    (name,) = options
    assert refused(chat_template_kwargs=options) == (None, f"chat_template_kwargs.{name}")


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("n", 2, "n_not_supported"),
        ("n", 0, "n_not_supported"),
        ("repetition_penalty", 1.1, "repetition_penalty_not_supported"),
        ("logit_bias", {"5": 1}, "logit_bias_not_supported"),
        ("logprobs", True, "logprobs_not_supported"),
        ("top_logprobs", 1, "logprobs_not_supported"),
        ("response_format", {"type": "json_object"}, "constrained_decoding_not_supported"),
        ("response_format", {"type": "json_schema"}, "constrained_decoding_not_supported"),
        ("response_format", {"type": "xml"}, "response_format_not_supported"),
        ("response_format", {}, "response_format_not_supported"),
        ("structured_outputs", {"regex": "a"}, "constrained_decoding_not_supported"),
        ("grammar", "root ::= x", "constrained_decoding_not_supported"),
        ("guided_json", {}, "constrained_decoding_not_supported"),
        ("guided_regex", "a", "constrained_decoding_not_supported"),
        ("guided_choice", ["a"], "constrained_decoding_not_supported"),
        ("guided_grammar", "x", "constrained_decoding_not_supported"),
        ("functions", [{}], "legacy_tools_not_supported"),
        ("function_call", {"name": "f"}, "legacy_tools_not_supported"),
        ("function_call", "f", "legacy_tools_not_supported"),
        ("modalities", ["text", "audio"], "modality_not_supported"),
        ("modalities", ["audio"], "modality_not_supported"),
        ("web_search_options", {}, "web_search_not_supported"),
        ("moderation", {}, "moderation_not_supported"),
        ("mm_processor_kwargs", {"fps": 1}, "mm_processor_kwargs_not_supported"),
        ("continue_final_message", True, "assistant_prefill_not_supported"),
    ],
)
def test_capability_that_is_missing_is_named(field, value, code):
    assert refused(**{field: value}) == (code, field)
    assert refused(STRICT, **{field: value}) == (code, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("repetition_penalty", 1),
        ("repetition_penalty", 1.0),
        ("logit_bias", {"5": 0}),
        ("logit_bias", {}),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("response_format", {"type": "text"}),
        ("grammar", ""),
        ("functions", []),
        ("function_call", "none"),
        ("function_call", "auto"),
        ("modalities", ["text"]),
        ("audio", {"voice": "x"}),
        ("mm_processor_kwargs", {}),
        ("mm_processor_kwargs", {"fps": None}),
        ("verbosity", "medium"),
        ("store", False),
        ("prediction", {"type": "content", "content": "x"}),
        ("metadata", {"a": "b"}),
        ("service_tier", "auto"),
        ("prompt_cache_key", "k" * 64),
        ("prompt_cache_retention", "24h"),
        ("prompt_cache_options", {"mode": "explicit", "ttl": "30m"}),
        ("user", "u"),
        ("tool_constraints", "basic"),
        ("continue_final_message", False),
    ],
)
def test_neutral_values_and_hints_are_taken_in_strict_mode_too(field, value):
    assert translated(STRICT, **{field: value}).headers == {}


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("verbosity", "low", "verbosity_not_supported"),
        ("verbosity", "high", "verbosity_not_supported"),
        ("store", True, "store_not_supported"),
    ],
)
def test_fields_without_effect_are_reported_or_refused(field, value, code):
    assert ignored(**{field: value}) == field
    assert refused(STRICT, **{field: value}) == (code, field)


def test_all_fields_without_effect_are_in_one_header():
    assert ignored(verbosity="low", store=True, top_k=40) == "verbosity,store,top_k"
