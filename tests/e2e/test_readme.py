"""What the README tells a stranger to type works as it stands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def readme_command(start: str) -> list[str]:
    """The README's command that starts with `uv run START`, without the `uv run`."""
    for block in code_blocks("console"):
        for line in block.replace("\\\n", " ").splitlines():
            _, found, command = line.partition("uv run ")
            if found and command.startswith(start):
                return shlex.split(command)
    pytest.fail(f"the README has no command {start!r}")


def run_installed(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    program = shutil.which(command[0], path=str(Path(sys.executable).parent))
    assert program is not None
    return subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, check=False, **options
    )


def test_the_first_command_answers_with_the_built_in_model():
    result = run_installed(readme_command("ninfer --prompt"))

    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert result.stdout.endswith("\n")
    assert "built-in model" in result.stderr


def test_the_conversion_command_converts_a_checkpoint(tmp_path):
    command = readme_command("ninfer-convert --model")
    checkpoint = ROOT / "tests" / "data" / "tiny-model" / "checkpoint"
    command[command.index("--model") + 1] = str(checkpoint)

    result = run_installed(command, cwd=tmp_path)

    assert result.returncode == 0, result.stderr
    output = command[command.index("--out") + 1]
    assert (tmp_path / output).is_file()
    inspected = run_installed(readme_command("ninfer-inspect"), cwd=tmp_path)
    assert inspected.returncode == 0, inspected.stderr
    assert "q4_g64_fp16" in inspected.stdout


def run_example(word: str, folder: Path, server: str = "http://127.0.0.1:8080") -> str:
    """Run the README's Python example that holds `word`; returns what it prints."""
    example = next(block for block in code_blocks("python") if word in block)
    script = folder / "example.py"
    script.write_text(example.replace("http://127.0.0.1:8080", server), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_engine_example_answers(tmp_path):
    assert "Paris" in run_example("EngineOptions", tmp_path)


def test_the_format_example_reads_the_built_in_model(tmp_path):
    assert "float32" in run_example("open_artifact", tmp_path)


def test_the_openai_example_talks_to_a_server(server_url, tmp_path):
    assert "Paris" in run_example("openai", tmp_path, server_url)
