"""Order, limits and the queue."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

PATH = "/v1/chat/completions"


def test_requests_are_executed_one_by_one_in_their_order(
    server, program, frontend, body, engine, eventually
):
    gate = program.gate()
    program.script("0", on_chunk={0: gate})
    for index in range(1, 5):
        program.script(str(index))
    with ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(server.client.post, PATH, json=body("question 0"))]
        gate.wait()
        for index in range(1, 5):
            answers.append(pool.submit(server.client.post, PATH, json=body(f"question {index}")))
            eventually(lambda index=index: engine.stats().waiting == index)
        gate.open()
        contents = [a.result().json()["choices"][0]["message"]["content"] for a in answers]
    assert contents == ["0", "1", "2", "3", "4"]
    decode = frontend.tokenizer.token_bytes
    prompts = [b"".join(map(decode, prompt)).decode() for prompt in program.prompts]
    assert all(f"question {index}" in prompt for index, prompt in enumerate(prompts))


def test_one_request_too_many_is_refused_at_once(serve, program, body):
    server = serve(max_pending_requests=2)
    gate = program.gate()
    program.script("first", on_chunk={0: gate})
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(server.client.post, PATH, json=body())
        gate.wait()
        others = [pool.submit(server.client.post, PATH, json=body()) for _ in range(3)]
        while not any(other.done() for other in others):
            time.sleep(0.005)
        gate.open()
        answers = [running.result(), *(other.result() for other in others)]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 429]
    (refused,) = (answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert server.client.post(PATH, json=body()).status_code == 200


def test_full_queue_leaves_the_server_healthy(serve, program, body):
    server = serve(max_pending_requests=1)
    gate = program.gate()
    program.script("first", on_chunk={0: gate})
    for _ in range(3):
        server.send_chat()
    gate.wait()
    assert server.client.get("/health").status_code == 200
    assert server.client.get("/v1/models").status_code == 200


def test_refused_requests_take_no_place(serve, program, body):
    server = serve(max_pending_requests=1)
    for _ in range(10):
        assert server.client.post(PATH, json=body(n=2)).status_code == 400
        assert server.client.post(PATH, json=body("x " * 5000)).status_code == 400
        assert server.client.post(PATH, content=b"{").status_code == 400
    assert server.client.post(PATH, json=body()).status_code == 200


def test_time_to_prepare_counts_as_waiting(serve, program, engine, monkeypatch, body, eventually):
    server = serve(pending_timeout_s=0.1)
    gate = program.gate()
    prepare = engine.prepare
    monkeypatch.setattr(engine, "prepare", lambda prompt: (gate(), prepare(prompt))[1])
    answer = server.client.post(PATH, json=body())
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "request_queue_timeout"
    gate.open()
    eventually(lambda: server.state._slots.taken == 0)


def test_no_deadline_after_admission(serve, program, body):
    server = serve(pending_timeout_s=0.15)
    program.script(
        "slow answer", chunks=3, on_chunk=dict.fromkeys(range(3), lambda: time.sleep(0.1))
    )
    for stream in (False, True):
        assert server.client.post(PATH, json=body(stream=stream)).status_code == 200


def test_preparation_does_not_hold_up_the_server(server, program, engine, monkeypatch, body):
    gate = program.gate()
    prepare = engine.prepare
    monkeypatch.setattr(engine, "prepare", lambda prompt: (gate(), prepare(prompt))[1])
    thread = threading.Thread(target=lambda: server.client.post(PATH, json=body()))
    thread.start()
    gate.wait()
    started = time.monotonic()
    assert server.client.get("/health").status_code == 200
    assert time.monotonic() - started < 1
    gate.open()
    thread.join()
