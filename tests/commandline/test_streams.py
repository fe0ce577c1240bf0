"""Commands whose standard streams are closed, full or broken."""

import subprocess
import sys

import pytest

PROGRAM = """
import click, sys
from ninfer_format.commandline import common_options, run

@click.command()
@click.option('--fail', is_flag=True)
@common_options('demo/1')
def demo(terminal, fail):
    terminal.note('for people')
    if fail:
        raise OSError(5, 'input/output error', 'file')
    terminal.print_json({}) if terminal.json else click.echo('product')

run(demo, 'demo/1')
"""


def run_with(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = f'"$0" -c "$1" {" ".join(arguments)} {redirection}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable, PROGRAM], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2> >(true)"])
def test_the_product_is_complete_without_stderr(redirection):
    result = run_with(redirection)

    assert result.returncode == 0
    assert result.stdout == "product\n"


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_failure_without_stderr_keeps_its_exit_code(redirection):
    result = run_with(redirection, "--fail")

    assert result.returncode == 1
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_product_that_cannot_be_written_is_a_failure(arguments):
    result = run_with(">&-", *arguments)

    assert result.returncode == 1
    assert "Traceback" not in result.stderr


def test_a_full_disk_is_named():
    result = run_with(">/dev/full")

    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "error: no space left on device"


def test_text_is_utf8_in_any_locale():
    program = PROGRAM.replace("'product'", "'n\\xe9 \\u4e2d'")
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )

    assert result.stdout.decode("utf-8") == "né 中\n"
