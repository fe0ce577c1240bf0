"""The values that travel between a caller and the engine: prompts, options, events and results.

All of them are plain, immutable and picklable, so that the engine's worker can be moved to a
process of its own without a change to its callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from ninfer_runtime.sampling.params import SamplingOverrides

Role = Literal["system", "developer", "user", "assistant", "tool"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Channel = Literal["reasoning", "content"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """One piece of text in a message; adjacent pieces are joined without a separator."""

    text: str


ContentPart = TextPart
"""What a message may hold beside a plain string. Text is the only kind so far."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that the model wrote or, in the history of a chat, once wrote.

    Attributes:
        id: What a tool's answer refers to; unique within one result.
        name: Name of the function.
        arguments: Values by parameter name, in the order in which the model wrote them.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat.

    Attributes:
        role: Who speaks.
        content: What is said; None for an assistant's turn that consists of calls only.
        reasoning_content: What the assistant thought before it answered.
        tool_calls: Calls of an assistant's turn.
        tool_call_id: The call that a tool's turn answers.
    """

    role: Role
    content: str | tuple[ContentPart, ...] | None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: Name of the function.
        description: What it does, in words for the model.
        parameters: JSON schema of its arguments; the order of keys reaches the prompt.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PromptInput:
    """What a prompt is made from: a chat that the template renders, or a raw prompt.

    Attributes:
        messages: The chat; empty with a raw prompt.
        raw_prompt: Text, or token ids, taken as they are; exactly one of this and `messages`.
        tools: Functions that the model may call.
        enable_thinking: Let the model think first; None leaves it to the template.
        reasoning_effort: How much the model should think; None leaves it to the template.
        preserve_thinking: Keep the thoughts of earlier turns; None leaves it to the template.
        template_options: Further variables for the template.
        add_generation_prompt: End the prompt where the assistant's answer begins.
    """

    messages: tuple[Message, ...] = ()
    raw_prompt: str | tuple[int, ...] | None = None
    tools: tuple[Tool, ...] = ()
    enable_thinking: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    preserve_thinking: bool | None = None
    template_options: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt that is ready to be executed.

    Attributes:
        token_ids: What the model reads.
        text: The rendered text; empty if the prompt was given as token ids.
        starts_in_reasoning: The first generated token belongs to the reasoning channel.
        tools: Functions whose calls are recognised in the output.
    """

    token_ids: tuple[int, ...]
    text: str
    starts_in_reasoning: bool
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How one prompt is continued.

    Attributes:
        max_output_tokens: Most tokens to generate; 0 executes the prompt only.
        sampling: Values that replace the model's preset.
        stop_strings: Generation ends before the first of these in the content.
        reasoning_stop_strings: The same for the reasoning channel.
        stop_token_ids: Tokens that end generation beside those of the model.
        ignore_eos: Treat the model's own stop tokens as ordinary tokens.
        raw_output: One channel with every token's spelling, special ones too.
        seed: Seed of the random numbers, u64; None draws one, and the result reports it.
        parallel_tool_calls: Let the output hold several calls; otherwise generation ends right
            after the first complete one.
    """

    max_output_tokens: int
    sampling: SamplingOverrides
    stop_strings: tuple[str, ...] = ()
    reasoning_stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    raw_output: bool = False
    seed: int | None = None
    parallel_tool_calls: bool = True


class FinishReason(StrEnum):
    """Why generation ended without an error; values are the names in lower case.

    `TOOL_CALL` is the first complete call where a request allows no more than one.
    """

    STOP_TOKEN = auto()
    STOP_STRING = auto()
    TOOL_CALL = auto()
    OUTPUT_LIMIT = auto()
    CONTEXT_CAPACITY = auto()
    CANCELLED = auto()


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """The first event of a request: it left the queue and its prompt is about to be executed."""

    prompt_tokens: int
    starts_in_reasoning: bool
    reused_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How much of the prompt has been executed, in tokens; comes once per prefill chunk."""

    total: int
    processed: int


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """A piece of output text.

    Attributes:
        channel: Where the text belongs.
        text: Never empty and always whole characters.
        completion_tokens: Tokens generated so far, including those that made this piece.
    """

    channel: Channel
    text: str
    completion_tokens: int


class OutputSink(Protocol):
    """Receives the events of one request, in order, on the engine's worker thread.

    Methods should return at once: the engine does nothing else meanwhile. An exception ends the
    request and nothing else.
    """

    def start(self, event: GenerationStart) -> None:
        """Take the first event; called exactly once, before all others."""
        ...

    def progress(self, event: PromptProgress) -> None:
        """Take the progress of the prompt."""
        ...

    def publish(self, event: OutputDelta) -> None:
        """Take a piece of output."""
        ...


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one request went, in seconds; none is negative.

    Attributes:
        queue_s: From submission until the request left the queue.
        prefill_s: From there until the first token was chosen.
        decode_s: From the first until the last token.
        total_s: From submission until the end.
    """

    queue_s: float
    prefill_s: float
    decode_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What became of a request that ended without an error; a cancelled one has what it produced.

    Attributes:
        text: The content channel without tool calls.
        reasoning: The reasoning channel.
        tool_calls: Calls recognised in the output.
        finish_reason: Why generation ended.
        matched_stop_string: The stop string that ended it, if one did.
        prompt_tokens: Length of the prompt.
        completion_tokens: Tokens generated, a stop token included.
        reasoning_tokens: How many of them belong to the reasoning channel.
        token_ids: All generated tokens.
        timings: Where the time went.
        seed: Seed of the random numbers.
        reused_prompt_tokens: Prompt tokens that did not have to be executed.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    matched_stop_string: str | None
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    token_ids: tuple[int, ...]
    timings: Timings
    seed: int
    reused_prompt_tokens: int = 0
