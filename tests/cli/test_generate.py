import errno
import io
import json
import sys
from pathlib import Path

import pytest

from ninfer_format.commandline import Terminal
from ninfer_runtime.cli.answer import AnswerPrinter
from ninfer_runtime.cli.generate import SCHEMA, _leave_at_once, command
from ninfer_runtime.engine.model_program import ModelProgram
from ninfer_runtime.engine.request import OutputDelta, PromptProgress, ToolCall
from ninfer_runtime.text.json_values import read_json
from ninfer_runtime.text.parsers.tool_calls import ToolCallParser
from ninfer_runtime.text.parsers.tool_regions import ParsedCall

GOLDENS = Path(__file__).parents[1] / "data" / "tiny-model" / "goldens" / "chat"
PROMPT = ("--prompt", "What is the capital of France?")
ODD_NUMBERS = '{"a":1e400,"b":1.10,"c":-0}'
UNIT = "ninfer_runtime.engine.model_program.ModelProgram.decode"
TEXT = "ninfer_runtime.text.output.OutputSession.accept"


@pytest.fixture
def ninfer(invoke):
    return lambda *arguments, **options: invoke(command, SCHEMA, *arguments, **options)


@pytest.fixture
def chat_file(tmp_path):
    def write(name):
        golden = json.loads((GOLDENS / f"{name}.json").read_text())
        document = {"messages": golden["messages"], "tools": golden["tools"] or []}
        path = tmp_path / "chat.json"
        path.write_text(json.dumps(document))
        return golden, str(path)

    return write


def test_the_answer_is_all_that_stdout_gets(ninfer):
    done = ninfer(*PROMPT, "--no-thinking", "--greedy")
    assert done.code == 0
    assert done.out == "The capital of France is Paris.\n"
    assert "Paris" not in done.err


def test_thoughts_and_statistics_go_to_stderr(ninfer):
    done = ninfer(*PROMPT, "--greedy")
    assert done.code == 0
    assert done.out.endswith("\n")
    assert not done.out.endswith("\n\n")
    lines = done.err.splitlines()
    assert lines[0] == "no MODEL given: using the built-in model tiny-qwen3_5"
    names = [line.split()[0] for line in lines[-9:]]
    assert names == [
        "load",
        "prepare",
        "prefill",
        "decode",
        "total",
        "sampling",
        "finish",
        "tokens",
        "memory",
    ]
    assert len(lines) > 10  # a thought stands between


def test_quiet_prints_the_answer_only(ninfer):
    done = ninfer(*PROMPT, "--greedy", "--quiet")
    assert done.out.endswith("\n")
    assert done.err == ""


def test_the_answer_is_that_of_the_reference(ninfer, chat_file, bf16_model):
    golden, path = chat_file("10-result-direct")
    done = ninfer(str(bf16_model), "--messages", path, "--no-thinking", "--greedy")
    assert done.out == golden["content"] + "\n"


def test_json_is_one_document_with_everything(ninfer, chat_file, bf16_model):
    golden, path = chat_file("01-arithmetic-think")
    done = ninfer(str(bf16_model), "--messages", path, "--greedy", "--json", "--print-token-ids")
    document = json.loads(done.out)
    assert list(document) == [
        "schema",
        "ok",
        "text",
        "reasoning",
        "tool_calls",
        "finish_reason",
        "matched_stop_string",
        "usage",
        "timings",
        "seed",
        "model",
        "token_ids",
    ]
    assert (document["schema"], document["ok"]) == ("ninfer/1", True)
    assert document["text"] == golden["content"]
    assert document["reasoning"] == golden["reasoning"]
    assert document["token_ids"] == golden["output_ids"]
    assert document["finish_reason"] == "stop_token"
    assert document["usage"]["prompt_tokens"] == len(golden["prompt_ids"])
    assert document["usage"]["completion_tokens"] == len(golden["output_ids"])
    assert document["usage"]["total_tokens"] == len(golden["prompt_ids"] + golden["output_ids"])
    assert min(document["timings"].values()) >= 0
    assert " ".join(map(str, golden["output_ids"])) in done.err.splitlines()
    assert document["reasoning"] not in done.err


def test_json_has_no_token_ids_unless_asked(ninfer):
    document = json.loads(ninfer(*PROMPT, "--max-new", "1", "--json").out)
    assert "token_ids" not in document
    assert document["timings"]["decode_tok_s"] is None


def test_numbers_of_calls_keep_their_spelling_on_stdout(capsys):
    printer = AnswerPrinter(Terminal("ninfer/1"), show_content=True)
    printer.finish([ToolCall("c", "f", read_json(ODD_NUMBERS))])
    assert capsys.readouterr().out == (
        '{"name": "f", "arguments": {"a": 1e400, "b": 1.10, "c": -0}}\n'
    )


def test_numbers_of_calls_keep_their_spelling_in_the_document(ninfer, chat_file, monkeypatch):
    parsed = ParsedCall("set_timer", read_json(ODD_NUMBERS))
    monkeypatch.setattr(ToolCallParser, "finish", lambda self: ("", (parsed,)))
    _, path = chat_file("08-call-direct")
    done = ninfer("--messages", path, "--no-thinking", "--max-new", "1", "--json")
    assert done.code == 0
    (call,) = json.loads(done.out)["tool_calls"]
    assert (call["name"], call["arguments"]) == ("set_timer", ODD_NUMBERS)


def test_thoughts_that_cannot_be_written_do_not_cost_the_answer(capsys, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "no space left on device")

    printer = AnswerPrinter(Terminal("ninfer/1"), show_content=True)
    for stderr in (Full(), None):
        monkeypatch.setattr(sys, "stderr", stderr)
        printer.publish(OutputDelta("reasoning", "hm", 1))
        printer.publish(OutputDelta("content", "yes", 2))
        printer.finish([])
    assert capsys.readouterr().out == "yes\nyes\n"


def test_calls_are_printed_as_lines_of_json(ninfer, chat_file, bf16_model):
    _, path = chat_file("08-call-direct")
    done = ninfer(str(bf16_model), "--messages", path, "--no-thinking", "--greedy")
    assert done.out == '{"name": "set_timer", "arguments": {"minutes": 86}}\n'


def test_raw_output_shows_everything(ninfer, chat_file, bf16_model):
    golden, path = chat_file("08-call-direct")
    done = ninfer(str(bf16_model), "--messages", path, "--no-thinking", "--greedy", "--raw-output")
    assert done.out == golden["output_text"] + "\n"


def test_prompts_and_chats_may_come_from_stdin(ninfer):
    expected = ninfer(*PROMPT, "--no-thinking", "--greedy").out
    prompt = PROMPT[1]
    assert ninfer("--prompt", "-", "--no-thinking", "--greedy", stdin=prompt.encode()).out == (
        expected
    )
    chat = json.dumps([{"role": "user", "content": prompt}]).encode()
    assert ninfer("--messages", "-", "--no-thinking", "--greedy", stdin=chat).out == expected


def test_the_output_limit_is_reported_with_a_hyphen(ninfer):
    done = ninfer(*PROMPT, "--no-thinking", "--greedy", "--max-new", "3")
    assert done.code == 0
    assert "finish   output-limit" in done.err.splitlines()
    assert "3 generated" in done.err


def test_the_end_of_the_context_is_reported(ninfer):
    done = ninfer(*PROMPT, "--no-thinking", "--greedy", "--max-context", "24")
    assert done.code == 0
    assert "finish   context-capacity" in done.err.splitlines()


def test_a_stop_string_ends_the_answer(ninfer):
    done = ninfer(*PROMPT, "--no-thinking", "--greedy", "--stop", " is Pa")
    assert done.out == "The capital of France\n"
    assert "finish   stop-string" in done.err.splitlines()


def test_a_stop_token_ends_the_answer(ninfer):
    ids = json.loads(
        ninfer(*PROMPT, "--no-thinking", "--greedy", "--json", "--print-token-ids").out
    )["token_ids"]
    done = ninfer(*PROMPT, "--no-thinking", "--greedy", "--stop-token-id", str(ids[2]))
    assert "3 generated" in done.err


def test_a_seed_makes_the_answer_repeatable(ninfer):
    texts = [
        ninfer(*PROMPT, "--temperature", "2", "--seed", seed, "--max-new", "20", "--json").out
        for seed in ("1", "1", "2")
    ]
    answers = [json.loads(text)["reasoning"] for text in texts]
    assert answers[0] == answers[1] != answers[2]


def test_a_dry_run_counts_the_prompt(ninfer):
    done = ninfer(*PROMPT, "--dry-run")
    assert (done.code, done.out) == (0, "17 prompt tokens\n")
    assert "<|im_start|>" not in done.err


def test_a_verbose_dry_run_shows_the_prompt(ninfer):
    done = ninfer(*PROMPT, "--dry-run", "-v")
    assert "<|im_start|>user\nWhat is the capital of France?<|im_end|>" in done.err


def test_verbose_says_what_runs(ninfer):
    done = ninfer(*PROMPT, "--max-new", "1", "-v")
    assert "<|im_start|>user\nWhat is the capital of France?<|im_end|>" in done.err
    assert "tiny-qwen3_5: Qwen3_5ForCausalLM, 13,453,744 parameters in" in done.err
    quiet = ninfer(*PROMPT, "--max-new", "1")
    assert "<|im_start|>" not in quiet.err
    assert "Qwen3_5ForCausalLM" not in quiet.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--prefill-chunk", "100"), "positive multiple of 128"),
        (("--max-context", "40000"), "outside 1..32768"),
        (("--backend", "tpu"), "--backend"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would(ninfer, monkeypatch, arguments, expected):
    done = ninfer(*PROMPT, "--dry-run", *arguments)
    assert done.code == 2
    assert expected in done.err
    monkeypatch.setenv("NINFER_BACKEND", "tpu")
    assert ninfer(*PROMPT, "--dry-run").code == 2


def test_a_dry_run_as_json(ninfer):
    document = json.loads(ninfer(*PROMPT, "--dry-run", "--json").out)
    assert document == {"schema": "ninfer/1", "ok": True, "prompt_tokens": 17}


def test_a_template_may_be_replaced(ninfer, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    done = ninfer("--prompt", "hi", "--chat-template", str(template), "--dry-run", "-v")
    assert done.err.splitlines()[-1] == "<hi>"


def test_a_tilde_is_the_home_folder(ninfer, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.jinja").write_text("<{{ messages[0].content }}>")
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "hi"}]')
    arguments = ("--messages", "~/chat.json", "--chat-template", "~/t.jinja", "--dry-run", "-v")
    assert ninfer(*arguments).err.splitlines()[-1] == "<hi>"
    assert "~nobody/chat.json: cannot be read" in ninfer("--messages", "~nobody/chat.json").err


def test_an_empty_path_is_not_the_current_folder(ninfer):
    done = ninfer("", *PROMPT)
    assert done.code == 2
    assert "the path is empty" in done.err


@pytest.mark.parametrize(
    ("where", "error", "code", "expected"),
    [
        (UNIT, MemoryError(), 4, "memory ran out"),
        (UNIT, ValueError("shape"), 70, "(hint: run again with --debug)"),
        (TEXT, KeyError("token"), 70, "(hint: run again with --debug)"),
    ],
)
def test_a_fault_ends_with_its_own_code(ninfer, monkeypatch, where, error, code, expected):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(where, fail)
    done = ninfer(*PROMPT, "--no-thinking")
    assert done.code == code
    assert expected in done.err.splitlines()[-1]


def test_a_failure_shows_the_cursor_again(ninfer, monkeypatch):
    advance = ModelProgram.advance_prefill

    def fail_in_the_second_chunk(self, handle):
        if self._sequence(handle).lane.length:
            raise ValueError("shape")
        return advance(self, handle)

    monkeypatch.setattr(ModelProgram, "advance_prefill", fail_in_the_second_chunk)
    shown = ("--progress", "rich", "--color", "always", "--prefill-chunk", "128")
    done = ninfer("--prompt", "word " * 300, *shown)
    assert done.code == 70
    hidden, shown_again = done.err.find("\x1b[?25l"), done.err.find("\x1b[?25h")
    assert 0 <= hidden < shown_again


def test_leaving_at_once_shows_the_cursor_again(capsys, monkeypatch):
    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", end)
    terminal = Terminal("ninfer/1", color="always", progress="rich")
    printer = AnswerPrinter(terminal, show_content=True)
    printer.progress(PromptProgress(total=4, processed=1))
    with pytest.raises(SystemExit) as ended:
        _leave_at_once(printer)
    assert ended.value.code == 130
    err = capsys.readouterr().err
    assert 0 <= err.find("\x1b[?25l") < err.find("\x1b[?25h") < err.find("interrupted")


def test_a_long_prompt_shows_its_progress(ninfer):
    done = ninfer("--prompt", "word " * 300, "--max-new", "1", "--prefill-chunk", "128", "--greedy")
    lines = [line for line in done.err.splitlines() if line.startswith("reading the prompt")]
    assert lines[0].startswith("reading the prompt: 0 %")
    assert lines[-1].startswith("reading the prompt: 100 %")
    assert "\r" not in done.err
    assert "\x1b" not in done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "exactly one of --prompt and --messages"),
        ((*PROMPT, "--messages", "x.json"), "exactly one of --prompt and --messages"),
        (("--prompt", ""), "--prompt is empty"),
        (
            (*PROMPT, "--greedy", "--temperature", "0.5"),
            "--greedy and --temperature exclude each other",
        ),
        (
            (*PROMPT, "--greedy", "--temperature", "0"),
            "--greedy and --temperature exclude each other",
        ),
        ((*PROMPT, "--no-thinking", "--reasoning-effort", "low"), "--no-thinking contradicts"),
        ((*PROMPT, "--stop", ""), "--stop needs a non-empty text"),
        ((*PROMPT, "--reasoning-stop", ""), "--reasoning-stop needs a non-empty text"),
        ((*PROMPT, "--temperature", "2.5"), "0<=x<=2"),
        ((*PROMPT, "--temperature", "nan"), "temperature"),
        ((*PROMPT, "--top-p", "1.5"), "0<=x<=1"),
        ((*PROMPT, "--top-k", "21"), "0<=x<=20"),
        ((*PROMPT, "--min-p", "-0.1"), "0<=x<=1"),
        ((*PROMPT, "--presence-penalty", "3"), "-2<=x<=2"),
        ((*PROMPT, "--frequency-penalty", "inf"), "-2<=x<=2"),
        ((*PROMPT, "--seed", "-1"), "seed"),
        ((*PROMPT, "--seed", str(2**64)), "seed"),
        ((*PROMPT, "--max-new", "0"), "max-new"),
        ((*PROMPT, "--max-context", "0"), "max-context"),
        ((*PROMPT, "--max-context", "40000"), r"outside 1..32768"),
        ((*PROMPT, "--prefill-chunk", "100"), "positive multiple of 128"),
        ((*PROMPT, "--stop-token-id", str(2**31)), "stop-token-id"),
        ((*PROMPT, "--max-neww", "3"), "--max-new"),
        (("--messages", "no-such-file.json"), "no-such-file.json: cannot be read"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(ninfer, arguments, expected):
    done = ninfer(*arguments)
    assert done.code == 2
    assert done.out == ""
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert expected in errors[0]


def test_a_prompt_beyond_the_context_names_both_numbers(ninfer):
    done = ninfer(*PROMPT, "--max-context", "10")
    assert done.code == 4
    assert "17 tokens" in done.err
    assert "10" in done.err


def test_errors_are_documents_too(ninfer):
    done = ninfer(*PROMPT, "--max-context", "10", "--json")
    document = json.loads(done.out)
    assert document["ok"] is False
    assert document["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("--backend", "cuda"), "cuda"), (("--device", "1"), "no cpu device 1")],
)
def test_a_missing_device_ends_with_5(ninfer, arguments, expected):
    done = ninfer(*PROMPT, *arguments)
    assert done.code == 5
    assert expected in done.err


def test_a_missing_model_ends_with_1(ninfer, tmp_path):
    done = ninfer(str(tmp_path / "absent.ninfer"), *PROMPT)
    assert done.code == 1
    assert "absent.ninfer" in done.err


def test_a_file_that_is_no_artifact_ends_with_3(ninfer, tmp_path):
    model = tmp_path / "x.ninfer"
    model.write_bytes(b"PK\x03\x04" + bytes(100))
    assert ninfer(str(model), *PROMPT).code == 3


def test_a_bad_messages_file_names_message_and_key(ninfer, tmp_path):
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "a", "colour": 1}]')
    done = ninfer("--messages", str(chat))
    assert done.code == 2
    assert f"{chat}: message 0: unknown key 'colour'" in done.err


def test_paths_may_hold_spaces_and_letters_of_any_script(ninfer, bf16_model, tmp_path):
    folder = tmp_path / "two words – ü日"
    folder.mkdir()
    model = folder / "m.ninfer"
    model.symlink_to(bf16_model)
    assert ninfer(str(model), *PROMPT, "--max-new", "1").code == 0


def test_a_model_with_a_leading_dash_follows_two_dashes(ninfer, bf16_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-m.ninfer").symlink_to(bf16_model)
    assert ninfer(*PROMPT, "--max-new", "1", "--", "-m.ninfer").code == 0


def test_the_model_may_come_from_the_environment(ninfer, bf16_model, monkeypatch):
    monkeypatch.setenv("NINFER_MODEL", str(bf16_model))
    done = ninfer(*PROMPT, "--max-new", "1", "--json")
    assert json.loads(done.out)["model"] == "tiny-bf16"
    assert "built-in" not in done.err


def test_a_named_model_wins_over_the_environment(ninfer, bf16_model, monkeypatch):
    monkeypatch.setenv("NINFER_MODEL", "/no/such/file")
    done = ninfer(str(bf16_model), *PROMPT, "--max-new", "1", "--json")
    assert json.loads(done.out)["model"] == "tiny-bf16"


def test_a_backend_of_the_environment_counts_unless_one_is_named(ninfer, monkeypatch):
    monkeypatch.setenv("NINFER_BACKEND", "cuda")
    assert ninfer(*PROMPT, "--max-new", "1").code == 5
    assert ninfer(*PROMPT, "--max-new", "1", "--backend", "cpu").code == 0


def test_an_absent_built_in_model_is_named(ninfer, monkeypatch):
    monkeypatch.setattr("ninfer_runtime.builtin_model.NAME", "absent.ninfer")
    done = ninfer(*PROMPT)
    assert done.code == 2
    assert "lacks the built-in model" in done.err
