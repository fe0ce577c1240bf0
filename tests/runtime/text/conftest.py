"""The tiny model's text files, and outputs whose tokens are whatever a test needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ninfer_runtime.engine.request import OutputDelta, PreparedPrompt, RequestOptions, Tool
from ninfer_runtime.sampling.params import SamplingOverrides
from ninfer_runtime.text.frontend import Frontend
from ninfer_runtime.text.output import OutputSession
from ninfer_runtime.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "data" / "tiny-model"


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The folder with the checkpoint and its goldens."""
    return TINY


@pytest.fixture(scope="session")
def resources() -> dict[str, bytes]:
    """The text files of the tiny model."""
    names = (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    )
    return {name: (TINY / "checkpoint" / name).read_bytes() for name in names}


@pytest.fixture(scope="session")
def frontend(resources: dict[str, bytes]) -> Frontend:
    return Frontend(resources)


@pytest.fixture(scope="session")
def tokenizer(frontend: Frontend) -> Tokenizer:
    return frontend.tokenizer


class ScriptedTokenizer(Tokenizer):
    """Knows one token for each distinct piece, and a special stop token behind them."""

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        encoded = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._pieces = [*dict.fromkeys(encoded), b"<|stop|>"]
        self.ids = [self._pieces.index(piece) for piece in encoded]
        self.stop = len(self._pieces) - 1

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id == self.stop


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedTokenizer]:
    return ScriptedTokenizer


class Played:
    """What came out of a session that was fed pieces, one token each, and perhaps the stop."""

    def __init__(
        self,
        pieces: Sequence[str | bytes],
        *,
        thinking: bool = False,
        tools: tuple[Tool, ...] = (),
        end_with_stop: bool = True,
        **options,
    ) -> None:
        script = ScriptedTokenizer(pieces)
        prompt = PreparedPrompt((0,), "", starts_in_reasoning=thinking, tools=tools)
        request = RequestOptions(max_output_tokens=100, sampling=SamplingOverrides(), **options)
        self.session = OutputSession(script, prompt, request, (script.stop,))
        self.deltas: list[OutputDelta] = []
        for token_id in [*script.ids, *([script.stop] if end_with_stop else [])]:
            deltas, reason = self.session.accept(token_id)
            self.deltas += deltas
            if reason is not None:
                break

    def text(self, channel: str) -> str:
        return "".join(delta.text for delta in self.deltas if delta.channel == channel)

    @property
    def calls(self):
        return [(call.name, call.arguments) for call in self.session.tool_calls]


@pytest.fixture(scope="session")
def play() -> type[Played]:
    return Played
