"""Inference of `.ninfer` artifacts: devices, ops, models, text, sampling and the engine.

The names below are what a program needs to drive an engine; they are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ninfer_runtime.engine.engine import Engine
    from ninfer_runtime.engine.handle import GenerationHandle
    from ninfer_runtime.engine.options import EngineOptions
    from ninfer_runtime.engine.request import (
        FinishReason,
        GenerationResult,
        GenerationStart,
        Message,
        OutputDelta,
        OutputSink,
        PreparedPrompt,
        PromptInput,
        PromptProgress,
        RequestOptions,
        TextPart,
        Tool,
        ToolCall,
    )
    from ninfer_runtime.errors import (
        CapacityError,
        ContextError,
        DeviceError,
        OpArgumentError,
        RequestError,
        RequestErrorKind,
        StartupError,
        UnsupportedOpError,
    )
    from ninfer_runtime.sampling.params import SamplingOverrides, SamplingParams

_MODULES = {
    "engine.engine": ("Engine",),
    "engine.handle": ("GenerationHandle",),
    "engine.options": ("EngineOptions",),
    "engine.request": (
        "FinishReason",
        "GenerationResult",
        "GenerationStart",
        "Message",
        "OutputDelta",
        "OutputSink",
        "PreparedPrompt",
        "PromptInput",
        "PromptProgress",
        "RequestOptions",
        "TextPart",
        "Tool",
        "ToolCall",
    ),
    "errors": (
        "CapacityError",
        "ContextError",
        "DeviceError",
        "OpArgumentError",
        "RequestError",
        "RequestErrorKind",
        "StartupError",
        "UnsupportedOpError",
    ),
    "sampling.params": ("SamplingOverrides", "SamplingParams"),
}

__all__ = [
    "CapacityError",
    "ContextError",
    "DeviceError",
    "Engine",
    "EngineOptions",
    "FinishReason",
    "GenerationHandle",
    "GenerationResult",
    "GenerationStart",
    "Message",
    "OpArgumentError",
    "OutputDelta",
    "OutputSink",
    "PreparedPrompt",
    "PromptInput",
    "PromptProgress",
    "RequestError",
    "RequestErrorKind",
    "RequestOptions",
    "SamplingOverrides",
    "SamplingParams",
    "StartupError",
    "TextPart",
    "Tool",
    "ToolCall",
    "UnsupportedOpError",
]

__getattr__ = lazy_exports(__name__, _MODULES)
