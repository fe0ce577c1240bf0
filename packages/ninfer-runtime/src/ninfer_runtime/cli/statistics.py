"""What ``ninfer`` reports about a finished request, as lines and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ninfer_format.commandline import Terminal, format_bytes
from ninfer_runtime.text.json_values import write_json

if TYPE_CHECKING:
    from ninfer_runtime.engine.model_info import ModelInfo
    from ninfer_runtime.engine.program import MemorySummary
    from ninfer_runtime.engine.request import GenerationResult
    from ninfer_runtime.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Statistics:
    """Everything that is reported about one request.

    Attributes:
        result: What became of it.
        sampling: How its tokens were drawn.
        prepare_s: Seconds that rendering and tokenizing took.
        model: The model.
        memory: Memory that was taken.
    """

    result: GenerationResult
    sampling: SamplingParams
    prepare_s: float
    model: ModelInfo
    memory: MemorySummary

    @property
    def prefill_tok_s(self) -> float | None:
        """Prompt tokens executed per second."""
        executed = self.result.prompt_tokens - self.result.reused_prompt_tokens
        return _rate(executed, self.result.timings.prefill_s)

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first one."""
        return _rate(self.result.completion_tokens - 1, self.result.timings.decode_s)

    def print(self, terminal: Terminal) -> None:
        """Print the block of statistics on stderr."""
        result, timings = self.result, self.result.timings
        reason = str(result.finish_reason).replace("_", "-")
        lines = {
            "load": f"{self.model.load_s:.2f} s, {format_bytes(self.model.payload_bytes)} "
            f"({self.model.name})",
            "prepare": f"{self.prepare_s:.3f} s",
            "prefill": f"{timings.prefill_s:.3f} s, {_speed(self.prefill_tok_s)}",
            "decode": f"{timings.decode_s:.3f} s, {_speed(self.decode_tok_s)}",
            "total": f"{timings.total_s:.3f} s",
            "sampling": _describe_sampling(self.sampling, result.seed),
            "finish": reason,
            "tokens": f"{result.prompt_tokens} prompt, {result.reused_prompt_tokens} reused, "
            f"{result.completion_tokens} generated ({result.reasoning_tokens} reasoning)",
            "memory": f"{format_bytes(self.memory.weight_bytes)} weights, "
            f"{format_bytes(self.memory.sequence_peak_bytes)} sequence",
        }
        for name, value in lines.items():
            terminal.note(f"{name:<9}{value}")

    def document(self, *, with_token_ids: bool) -> dict[str, Any]:
        """Return the JSON document of the command; times in seconds, unknown rates null.

        The arguments of a call are a string that holds their JSON, as they are over HTTP: the
        numbers of a document would lose the spelling that the model gave them.
        """
        result, timings = self.result, self.result.timings
        document: dict[str, Any] = {
            "text": result.text,
            "reasoning": result.reasoning,
            "tool_calls": [
                {"id": call.id, "name": call.name, "arguments": write_json(call.arguments)}
                for call in result.tool_calls
            ],
            "finish_reason": str(result.finish_reason),
            "matched_stop_string": result.matched_stop_string,
            "usage": {
                "prompt_tokens": result.prompt_tokens,
                "reused_prompt_tokens": result.reused_prompt_tokens,
                "completion_tokens": result.completion_tokens,
                "reasoning_tokens": result.reasoning_tokens,
                "total_tokens": result.prompt_tokens + result.completion_tokens,
            },
            "timings": {
                "load_s": self.model.load_s,
                "prepare_s": self.prepare_s,
                "queue_s": timings.queue_s,
                "prefill_s": timings.prefill_s,
                "decode_s": timings.decode_s,
                "total_s": timings.total_s,
                "prefill_tok_s": self.prefill_tok_s,
                "decode_tok_s": self.decode_tok_s,
            },
            "seed": result.seed,
            "model": self.model.name,
        }
        if with_token_ids:
            document["token_ids"] = list(result.token_ids)
        return document


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _speed(tok_s: float | None) -> str:
    return "n/a tok/s" if tok_s is None else f"{tok_s:.1f} tok/s"


def _describe_sampling(sampling: SamplingParams, seed: int) -> str:
    if sampling.temperature == 0:
        return "greedy"
    return (
        f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, "
        f"top_k {sampling.top_k}, min_p {sampling.min_p:g}, "
        f"presence_penalty {sampling.presence_penalty:g}, "
        f"frequency_penalty {sampling.frequency_penalty:g}, seed {seed}"
    )
