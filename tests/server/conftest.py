"""A real engine whose program is scripted, behind the application, in process or on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from ninfer_runtime.engine.engine import Engine
from ninfer_runtime.engine.model_info import ModelInfo
from ninfer_runtime.engine.options import EngineOptions
from ninfer_runtime.engine.program import MemorySummary, PrefillStep, SequenceHandle
from ninfer_runtime.sampling.params import Sampling
from ninfer_runtime.text.frontend import Frontend
from ninfer_server.app import create_app
from ninfer_server.listener import bind, url_of
from ninfer_server.logs import configure_logging
from ninfer_server.serve import HttpServer
from ninfer_server.settings import ServerSettings
from ninfer_server.state import ServerState

CHECKPOINT = Path(__file__).parents[1] / "data" / "tiny-model" / "checkpoint"
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)
MODEL = "scripted"
MAX_CONTEXT = 4096
PATIENCE_S = 10.0


class Gate:
    """Holds the engine's thread at a place until a test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self._opened.wait()

    def open(self) -> None:
        self._opened.set()

    def wait(self) -> None:
        assert self.reached.wait(PATIENCE_S), "the engine did not get here"


@dataclass
class Script:
    """What the program does for one request.

    `on_chunk` and `on_token` map a position to something that is called before that prefill chunk
    is executed, or before that output token is given; it may wait or raise.
    """

    token_ids: Sequence[int]
    chunks: int = 1
    on_chunk: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    on_token: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    on_every_token: Callable[[], None] | None = None


class ScriptedProgram:
    """Plays scripts, one for each request in order; records what it was asked."""

    max_position_embeddings = 32_768

    def __init__(self, frontend: Frontend) -> None:
        self.vocab_size = frontend.tokenizer.public_tokens
        self.prompts: list[tuple[int, ...]] = []
        self.chunks_executed = 0
        self.tokens_given = 0
        self._frontend = frontend
        self._scripts: deque[Script] = deque()
        self._script = Script(self.tokens("Hello!"))
        self._gates: list[Gate] = []
        self._chunk = 0
        self._token = 0

    def script(self, text: str | Sequence[int], *, stop: bool = True, **behaviour: Any) -> Script:
        """Queue a script: a text as the model would write it, or its tokens."""
        ids = self.tokens(text) if isinstance(text, str) else list(text)
        script = Script(ids + [self._frontend.stop_token_ids[0]] * stop, **behaviour)
        self._scripts.append(script)
        return script

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text as the model would write it."""
        return self._frontend.tokenizer.encode_with_controls(text)

    def gate(self) -> Gate:
        """Make a gate that is opened when the test ends, at the latest."""
        self._gates.append(Gate())
        return self._gates[-1]

    def open_gates(self) -> None:
        for gate in self._gates:
            gate.open()

    def begin(self, token_ids: Sequence[int], capacity: int, sampling: Sampling) -> SequenceHandle:
        self.prompts.append(tuple(token_ids))
        if not self._scripts:
            self.script("Hello!")
        self._script = self._scripts.popleft()
        self._chunk = self._token = 0
        return SequenceHandle(len(self.prompts))

    def advance_prefill(self, handle: SequenceHandle) -> PrefillStep:
        self._script.on_chunk.get(self._chunk, _nothing)()
        self._chunk += 1
        self.chunks_executed += 1
        processed = len(self.prompts[-1]) * self._chunk // self._script.chunks
        is_last = self._chunk == self._script.chunks
        return PrefillStep(processed, self._choose() if is_last else None)

    def decode(self, handle: SequenceHandle, token_id: int) -> int:
        return self._choose()

    def _choose(self) -> int:
        self._script.on_token.get(self._token, _nothing)()
        (self._script.on_every_token or _nothing)()
        ids = self._script.token_ids
        chosen = ids[min(self._token, len(ids) - 1)]
        self._token += 1
        self.tokens_given += 1
        return chosen

    def finish(self, handle: SequenceHandle) -> None:
        pass

    def discard(self, handle: SequenceHandle) -> None:
        pass

    def score(self, token_ids: Sequence[int], first_target: int, public_tokens: int) -> np.ndarray:
        return np.zeros(len(token_ids) - first_target, np.float32)

    def target_logits(
        self, token_ids: Sequence[int], first_target: int, public_tokens: int
    ) -> Generator[np.ndarray, None, None]:
        yield np.zeros((len(token_ids) - first_target, public_tokens), np.float32)

    def memory(self) -> MemorySummary:
        return MemorySummary(weight_bytes=0, sequence_bytes=0, sequence_peak_bytes=0)

    def close(self) -> None:
        pass


def _nothing() -> None:
    pass


@pytest.fixture(scope="module", autouse=True)
def _quiet_logs() -> Iterator[None]:
    """Log nothing; afterwards the engine's logger is as other tests expect it."""
    engine = logging.getLogger("ninfer_runtime")
    before = engine.handlers, engine.propagate, engine.level
    configure_logging("off", print)
    yield
    engine.handlers, engine.propagate = before[:2]
    engine.setLevel(before[2])


@pytest.fixture(scope="session")
def text_files() -> dict[str, bytes]:
    return {name: (CHECKPOINT / name).read_bytes() for name in TEXT_FILES}


@pytest.fixture(scope="session")
def frontend(text_files: dict[str, bytes]) -> Frontend:
    return Frontend(text_files)


@pytest.fixture
def program(frontend: Frontend) -> Iterator[ScriptedProgram]:
    program = ScriptedProgram(frontend)
    yield program
    program.open_gates()


@pytest.fixture
def make_engine(program: ScriptedProgram) -> Iterator[Callable[[Frontend], Engine]]:
    """Make an engine of the scripted program and a frontend."""
    engines: list[Engine] = []

    def make(frontend: Frontend) -> Engine:
        info = ModelInfo(
            name=MODEL,
            architecture="ScriptedForCausalLM",
            vocab_size=program.vocab_size,
            public_tokens=frontend.tokenizer.public_tokens,
            max_context=MAX_CONTEXT,
            max_position_embeddings=program.max_position_embeddings,
            hidden_size=256,
            num_parameters=1000,
            payload_bytes=2000,
            formats=("bf16", "q8_g32_fp16"),
        )
        options = EngineOptions(
            model=Path("unused.ninfer"), max_context=MAX_CONTEXT, max_pending_requests=64
        )
        engines.append(Engine.from_parts(program, frontend, options, info))
        return engines[-1]

    yield make
    program.open_gates()
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make_engine: Callable[[Frontend], Engine], frontend: Frontend) -> Engine:
    return make_engine(frontend)


def settings_of(**changes: Any) -> ServerSettings:
    """Settings of a server whose model answers without thinking unless a test asks for it."""
    return ServerSettings(**{"enable_thinking": False, **changes})


@pytest.fixture
def make_client(engine: Engine) -> Iterator[Callable[..., TestClient]]:
    """Make a client of the application in this process; answers come whole."""
    clients: list[TestClient] = []

    def make(engine: Engine = engine, **settings: Any) -> TestClient:
        app = create_app(engine, settings_of(**settings))
        clients.append(TestClient(app, raise_server_exceptions=False))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., TestClient]) -> TestClient:
    return make_client()


class LiveServer:
    """The application on a port of the loopback interface, served from a thread."""

    def __init__(self, engine: Engine | None, settings: ServerSettings) -> None:
        self.app = create_app(engine, settings)
        self.state: ServerState = self.app.state.server
        self._listener = bind("127.0.0.1", 0)
        self.url = url_of(self._listener)
        self.port: int = self._listener.getsockname()[1]
        self._http = HttpServer(self.app)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.client = httpx2.Client(base_url=self.url, timeout=PATIENCE_S)
        self._connections: list[socket.socket] = []

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            await self._http.serve(sockets=[self._listener])

        asyncio.run(main())

    def call(self, work: Callable[[], Any]) -> Any:
        """Run a coroutine function on the server's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        self._connections.append(connection)
        return connection

    def send_chat(self, **fields: Any) -> socket.socket:
        """Send a chat request on a socket of its own and return it without reading."""
        body = json.dumps(chat_body(**fields)).encode()
        connection = self.connect()
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return connection

    def read_chat(self, connection: socket.socket) -> str:
        """Read an answer that comes whole and return its content."""
        with HTTPResponse(connection) as response:
            response.begin()
            assert response.status == 200
            content: str = json.load(response)["choices"][0]["message"]["content"]
            return content

    def close(self) -> None:
        self.client.close()
        for connection in self._connections:
            connection.close()
        self._http.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"


@pytest.fixture
def serve(engine: Engine, program: ScriptedProgram) -> Iterator[Callable[..., LiveServer]]:
    """Start a server on loopback."""
    servers: list[LiveServer] = []

    def start(**settings: Any) -> LiveServer:
        servers.append(LiveServer(engine, settings_of(**settings)))
        return servers[-1]

    yield start
    program.open_gates()
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Callable[..., LiveServer]) -> LiveServer:
    return serve()


def chat_body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat completion request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


@pytest.fixture
def body() -> Callable[..., dict[str, Any]]:
    return chat_body


@pytest.fixture
def events() -> Callable[[bytes], list[Any]]:
    """Parse a stream strictly: blocks with exactly one data line each; comments are left out."""

    def parse(stream: bytes) -> list[Any]:
        assert stream.endswith(b"\n\n")
        blocks = [block for block in stream.decode().split("\n\n")[:-1] if block[0] != ":"]
        for block in blocks:
            assert block.startswith("data: "), block
            assert "\n" not in block, block
        payloads = [block.removeprefix("data: ") for block in blocks]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    return parse


def wait_until(predicate: Callable[[], bool]) -> None:
    """Poll until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not predicate():
        assert time.monotonic() < deadline, "it did not become so"
        time.sleep(0.002)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    return wait_until


@dataclass
class RunningCommand:
    """A running ninfer-serve; its stderr is read all the time, as a terminal does."""

    process: subprocess.Popen[str]
    _log: list[str]
    _drain: threading.Thread

    def wait(self) -> tuple[int, str]:
        """Wait for the end; returns the exit code and what it wrote to stderr."""
        code = self.process.wait(timeout=PATIENCE_S)
        self._drain.join(PATIENCE_S)
        return code, "".join(self._log)


@contextmanager
def running_command(*options: str) -> Iterator[tuple[RunningCommand, dict[str, Any]]]:
    """Run ninfer-serve until the block ends; yields it and its ready document."""
    command = [sys.executable, "-c", "from ninfer_server.cli import main; main()", "--port", "0"]
    with subprocess.Popen(
        [*command, "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        log: list[str] = []
        drain = threading.Thread(target=log.extend, args=(child.stderr,))
        drain.start()
        try:
            ready = child.stdout.readline()
            assert ready, log
            yield RunningCommand(child, log, drain), json.loads(ready)
        finally:
            child.kill()
            drain.join()


@pytest.fixture(scope="session")
def serve_command() -> Callable[..., Any]:
    return running_command
