"""The command: what it prints, its exit codes, and that it says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from cookbook import evidence
from cookbook.catalog import Catalog
from cookbook.cli import COMMANDS, main
from cookbook.cli import run as cli_run
from cookbook.formats import FORMATS
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


@pytest.mark.parametrize("name", FORMATS)
def test_show_has_every_format(name: str) -> None:
    result = run("show", "b300_tp8", "--format", name)
    assert result.exit_code == 0
    assert "kimi_k3" in result.output


def test_show_takes_a_selection_by_hand() -> None:
    chosen = ("--hardware", "gb300", "--strategy", "multi_node_tp", "--feature", "dcp", "--nodes", "4")
    result = run("show", *chosen)
    assert result.exit_code == 0
    assert "--decode-context-parallel-size 8" in result.output
    assert "# unverified: No source states this combination" in result.output


def test_show_takes_one_node_and_one_role() -> None:
    text = run("show", "gb300_pd", "--node", "2", "--set", "decode:max-num-seqs=16").output
    assert "--max-num-seqs 16" in text
    assert "prefill-0" not in text
    assert ': "${DECODE_0_IP:?' in text
    assert run("show", "gb300_pd", "--node", "0").output.rstrip().endswith("wait")


def test_what_a_rule_forbids_is_one_paragraph_with_a_way_out() -> None:
    result = run("show", "--hardware", "tpu_v7x", "--strategy", "multi_node_tep", "--feature", "spec_decoding")
    assert result.exit_code == 2
    assert "vllm-torchtpu/pull/2770" in result.stderr
    assert "The nearest selection that works: --hardware tpu_v7x" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_capacity_says_what_is_arithmetic_and_what_is_calibrated() -> None:
    text = run("capacity", "b300_dcp8", "--context", "200000", "--sequences", "12").output
    assert "weights of a device" in text
    assert "calibrated: Fitted to the two published figures" in text
    assert "published: 18.5 M tokens" in text
    assert "do 12 of them fit" in text
    assert json.loads(run("capacity", "b300_dcp8", "--json").output)[0]["calibrated"] is True


def test_show_speaks_json() -> None:
    deployment = json.loads(run("show", "b300_tp8", "--json").output)
    assert deployment["processes"][0]["port"] == 8000


def test_show_takes_overrides() -> None:
    assert "--max-model-len 1000" in run("show", "b300_tp8", "--set", "max-model-len=1000").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "b300_tp"), 'There is no recipe called "b300_tp". Did you mean b300_tp8 or b300_tep or gb300_tp8?'),
        (("run", "b300"), 'There is no recipe called "b300"'),
        (("check", "b300_tp9"), 'There is no recipe called "b300_tp9"'),
        (("check",), "No recipe is named. Name one, or take --all."),
        (("check", "--all", "b300_tp8"), "--all takes every combination as it is."),
        (("check", "--capture", "x.json", "b300_tp8"), "--capture writes what vLLM knows and checks nothing."),
        (("show",), "No recipe is named. `cookbook list` shows recipes, hardware"),
        (("show", "--hardware", "b300"), "both --hardware and --strategy are needed"),
        (("show", "b300_tp8", "--hardware", "b300"), "A recipe brings its own hardware"),
        (("show", "b300_tp8", "--node", "1"), "There is no node 1. The nodes are 0 to 0."),
        (("show", "gb300_pd", "--node", "1", "--format", "slurm"), "--node does not go with --format slurm"),
        (
            ("show", "ppu_810e_tp32", "--format", "docker"),
            "has no image to put into this format: The source speaks",
        ),
        (("show", "b300_kv_offload", "--host-memory", "lots"), '--host-memory is "lots"'),
        (("show", "b300_kv_offload", "--host-memory", "100", "--offload", "50"), "8 devices x 50 GiB are 400 GiB"),
        (("show", "b300_tep", "--set", "additional-config={}", "--nodes", "2"), "has 1 node(s)"),
        (("capacity", "--hardware", "cpu", "--strategy", "single_node_tp"), "runs a small model"),
        (("capacity", "b300_tp8", "--context", "2000000"), "longer than the model's 1048576 tokens"),
        (("run",), "Name a recipe, or all of them with --all."),
        (("run", "b300_tp8", "--all"), "--all and a recipe exclude each other."),
        (("run", "--all", "--parameters", "modle=x"), 'No recipe has a parameter "modle".'),
        (("run", "b300_tp8", "--parameters", "modle=x"), 'b300_tp8 has no parameter "modle". Did you mean model'),
        (("run", "b300_tp8", "--parameters", "port=x"), 'The parameter port is "x". It has to be of type int'),
        (("run", "b300_tp8", "--parameters", "ready_timeout_s=-1"), "It is a number of seconds above 0."),
        (("run", "b300_tp8", "--parameters", "base_url=nonsense"), 'base_url "nonsense" is not an address'),
        (("run", "b300_tp8", "--on", "cpu", "--parameters", "rehearse=false"), "contradicts --on cpu"),
        (("run", "b300_tp8", "--on", "cpu", "--parameters", "base_url=http://a:1"), "exclude each other"),
        (("run", "b300_tp8", "--partition", "gpu"), "--partition is for a Slurm job. Add --on slurm"),
        (("run", "b300_tp8", "--on", "cpu", "--sbatch", "time=1"), "--sbatch is for a Slurm job."),
        (("run", "b300_tp8", "--queue-limit", "9"), "--queue-limit is for a Slurm job."),
        (("run", "b300_tp8", "--on", "slurm", "--sbatch", "=1"), '--sbatch "=1" names no option.'),
        (
            ("run", "b300_tp8", "--on", "slurm", "--parameters", "base_url=http://a:1"),
            "base_url and --on slurm exclude each other",
        ),
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
    rows = json.loads(run("list", "--runs", str(tmp_path), "--json").output)["recipes"]
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


def test_list_has_the_matrix_with_a_reason_for_each_refusal() -> None:
    text = run("list").output
    assert "low_latency    recipe  can     -" in text
    cells = json.loads(run("list", "--json").output)["matrix"]
    assert all(cell["why"] for cell in cells if cell["state"] == "refused")
    assert any("vllm-torchtpu/pull/2770" in why for cell in cells for why in cell["why"])


def finished(recipe: str, code: int) -> SimpleNamespace:
    status = {0: "passed", 1: "failed", 3: "server_failed", 130: "interrupted"}[code]
    found = an_evidence().model_copy(update={"recipe": recipe, "status": status, "exit_code": code})
    return SimpleNamespace(evidence=found, folder=Path("runs") / recipe)


def run_all(monkeypatch: pytest.MonkeyPatch, codes: dict[str, int], *more: str) -> tuple[list[str], Result]:
    ran: list[str] = []

    def execute(catalog: Catalog, recipe: str, *_: object, **__: object) -> SimpleNamespace:
        ran.append(recipe)
        return finished(recipe, codes.get(recipe, 0))

    monkeypatch.setattr(cli_run, "execute", execute)
    return ran, run("run", "--all", "--on", "cpu", *more)


def test_all_recipes_are_run_though_one_fails_by_a_double_of_the_run(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog
) -> None:
    ran, result = run_all(monkeypatch, {"b300_tep": 3, "b300_dcp8": 1})
    assert sorted(ran) == sorted(catalog.recipes)
    assert result.exit_code == 3
    assert "server failed" in result.stdout


def test_an_interrupt_ends_all_by_a_double_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, result = run_all(monkeypatch, {"b300_tep": 130})
    assert ran == ["b300_tp8", "b300_tep"]
    assert result.exit_code == 130
    assert "not run" in result.stdout


def test_all_as_json_is_a_list_by_a_double_of_the_run(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
    _, result = run_all(monkeypatch, {}, "--json")
    assert sorted(one["recipe"] for one in json.loads(result.stdout)) == sorted(catalog.recipes)
