"""The command: what it prints, its exit codes, and that it says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cookbook import evidence
from cookbook.cli import COMMANDS, main
from tests.test_evidence import an_evidence


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_help_names_the_exit_codes() -> None:
    assert "3 the server did not come up" in " ".join(run("--help").output.split())


def test_show_prints_one_flag_a_line() -> None:
    result = run("show", "b300_tp8")
    assert result.exit_code == 0
    assert "  --kv-cache-dtype fp8 \\\n" in result.output
    assert "# image: vllm/vllm-openai:kimi-k31 (inferred)" in result.output
    assert "# inferred from Kimi-K3, not stated for K3.1: --trust-remote-code" in result.output


def test_show_explains() -> None:
    result = run("show", "b300_tp8", "--explain")
    assert "[stated, strategy single_node_tp] vLLM recipe page" in result.output


def test_show_speaks_json() -> None:
    deployment = json.loads(run("show", "b300_tp8", "--json").output)
    assert deployment["processes"][0]["port"] == 8000


def test_show_takes_overrides() -> None:
    assert "--max-model-len 1000" in run("show", "b300_tp8", "--set", "max-model-len=1000").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "b300_tp"), 'There is no recipe called "b300_tp". Did you mean b300_tp8?'),
        (("run", "b300"), 'There is no recipe called "b300"'),
        (("check", "b300_tp9"), 'There is no recipe called "b300_tp9"'),
        (("check",), "No recipe is named. Name one, or take --all."),
        (("run", "b300_tp8", "--parameters", "modle=x"), 'b300_tp8 has no parameter "modle". Did you mean model'),
        (("run", "b300_tp8", "--parameters", "port=x"), 'The parameter port is "x". It has to be of type int'),
        (("run", "b300_tp8", "--parameters", "ready_timeout_s=-1"), "It is a number of seconds above 0."),
        (("run", "b300_tp8", "--parameters", "base_url=nonsense"), 'base_url "nonsense" is not an address'),
        (("run", "b300_tp8", "--on", "cpu", "--parameters", "rehearse=false"), "contradicts --on cpu"),
        (("run", "b300_tp8", "--on", "cpu", "--parameters", "base_url=http://a:1"), "exclude each other"),
        (("run", "b300_tp8"), "does not know KimiK31ForConditionalGeneration"),
        (("evidence", "show", "b300_tp9"), 'No run of "b300_tp9"'),
    ],
)
def test_bad_input_is_one_clear_paragraph(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_output_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    arguments = ("--output", str(blocked / "runs"), "--parameters", "base_url=http://127.0.0.1:1")
    result = run("run", "b300_tp8", *arguments)
    assert result.exit_code == 2
    assert "cannot be made: Not a directory. Name a folder that you may write to" in result.stderr


def test_list_has_a_status_by_rule(tmp_path: Path) -> None:
    assert "not run yet" in run("list", "--runs", str(tmp_path)).output
    folder = tmp_path / "b300_tp8" / "20261201T050000Z-abcd"
    folder.mkdir(parents=True)
    evidence.write(folder / "evidence.json", an_evidence())
    rows = json.loads(run("list", "--runs", str(tmp_path), "--json").output)
    assert rows[0]["state"] == "not_run"
    assert "rehearsed on a CPU, 2026-12-01, vLLM 0.32.0+cpu, but the run left no executed notebook" in rows[0]["status"]


def test_evidence_is_shown_as_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "b300_tp8" / "20261201T050000Z-abcd"
    folder.mkdir(parents=True)
    evidence.write(folder / "evidence.json", an_evidence())
    result = run("evidence", "show", "b300_tp8", "--runs", str(tmp_path))
    assert result.exit_code == 0
    assert "rehearsed on a CPU: no number of the hardware" in " ".join(result.output.split())
    assert run("evidence", "show", str(folder), "--json").exit_code == 0


def test_list_and_show_do_not_import_what_is_heavy() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from cookbook.cli import main;"
        "CliRunner().invoke(main, ['list']); CliRunner().invoke(main, ['show', 'b300_tp8']);"
        "print([m for m in ('vllm', 'torch', 'papermill', 'jupytext', 'openai', 'IPython') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
